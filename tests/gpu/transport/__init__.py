"""Transports between two CUDA devices."""
