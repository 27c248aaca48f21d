"""Decisions of the control plane. Pure: no I/O, no clock, no randomness."""
