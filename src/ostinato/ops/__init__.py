"""Kernels: the contract, and the backends that fulfil it."""
