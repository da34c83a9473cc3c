"""Programs that run inside a peer's own virtual environment."""
