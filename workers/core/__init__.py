"""Decisions of a worker: blocks, sequences, schedules. Pure."""
