"""Moving blocks between the pools of two workers: one port, and the ways behind it."""
