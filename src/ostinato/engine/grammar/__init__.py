"""Constrained decoding: an answer, or a part of one, that must match a grammar. The engine is `llguidance`."""
