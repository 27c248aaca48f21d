"""The control plane of LMPool, and what all its processes share."""
