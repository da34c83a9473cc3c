"""Ostinato beside other CPU engines on the same prompts. `python -m benchmarks.peers --help`."""
