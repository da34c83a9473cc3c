"""What rounding activations costs in quality, beside llama.cpp. `python -m benchmarks.quality --help`."""
