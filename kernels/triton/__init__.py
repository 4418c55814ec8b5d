"""Triton kernels: compiled on a GPU, interpreted elsewhere. Importing this package does not import triton."""
