"""What rounding costs in quality: activations, beside llama.cpp, and K/V formats (`… quality kv`)."""
