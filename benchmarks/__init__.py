"""Every published number, with its command. `make bench` runs all of it; `python -m benchmarks --help`."""
