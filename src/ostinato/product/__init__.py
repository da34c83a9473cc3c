"""Vendors' prompt caches, as rules over token positions: what is a read, what is a write, for how long it
stays."""
