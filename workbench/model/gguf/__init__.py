"""Models in a GGUF file: its metadata as a Hugging Face config, its tensors dequantized under Hugging Face names.

Importing the package imports no torch; `iter_tensors` does when it is called.
"""

from workbench.gguf_file import GGUFFile, TensorInfo
from workbench.model.gguf.hf_config import config_of, eos_token_ids, read_config
from workbench.model.gguf.mapping import iter_tensors

__all__ = ["GGUFFile", "TensorInfo", "config_of", "eos_token_ids", "iter_tensors", "read_config"]
