"""Kernels for NVIDIA GPUs, and the attention backend made of them. Needs Triton."""
