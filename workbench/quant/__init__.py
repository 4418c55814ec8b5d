"""Fewer bits: number formats, what a quantized tensor is, and the algorithms that choose its numbers.

Pure functions of tensors. What runs a model to gather the statistics they need is above, in `workbench.compress`.
"""
