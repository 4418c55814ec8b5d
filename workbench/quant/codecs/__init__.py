"""Quantized weights as checkpoints keep them: one module a format, each to and from `QuantizedWeight`."""
