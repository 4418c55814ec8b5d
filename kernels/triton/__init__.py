"""Triton kernels: compiled on a GPU, interpreted elsewhere. Importing this package imports neither triton nor torch."""
