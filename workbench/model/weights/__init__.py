"""Weights by name: read from safetensors or GGUF, or made up, and always checked against the configuration."""

from workbench.model.weights.dummy import dummy_weights
from workbench.model.weights.expected import expected_tensors
from workbench.model.weights.files import load_safetensors
from workbench.model.weights.load import load_weights, pick_format, read_model_config

__all__ = ["dummy_weights", "expected_tensors", "load_safetensors", "load_weights", "pick_format", "read_model_config"]
