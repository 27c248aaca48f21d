"""Blocks between real processes."""
