"""Writes a GGUF file anew in another storage type with llama.cpp's own quantizer: SOURCE TARGET TYPE."""

from __future__ import annotations

import ctypes
import sys

import llama_cpp

TYPES = {"f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16, "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}


def main(source: str, target: str, kind: str) -> int:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    params.allow_requantize = True
    params.pure = True  # every matrix in the one type, the embedding too
    return int(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
