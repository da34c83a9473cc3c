"""How fast K/V formats are read, side by side in one run."""
