"""Measurements; every figure in README.md comes from here."""
