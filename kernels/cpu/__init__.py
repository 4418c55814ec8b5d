"""C++ kernels for CPUs: plain C functions, compiled on first use by the system's compiler, called through ctypes."""
