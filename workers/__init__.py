"""The data plane: one process a GPU (or a CPU replica)."""
