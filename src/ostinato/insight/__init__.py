"""What the operator sees: metrics of the engine and of its cache."""
