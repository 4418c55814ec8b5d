"""``workbench quantize``: a model in fewer bits, as a folder."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name, folder, .gguf file or hub id")
    parser.add_argument("--scheme", default="w4a16", metavar="S", help="w4a16 or w8a16 (default: w4a16)")
    parser.add_argument("--algorithm", default="rtn", metavar="A", help="rtn, gptq or awq (default: rtn)")
    parser.add_argument("--group-size", type=int, default=None, metavar="G",
                        help="inputs that share a scale; -1: a whole row (default: the scheme's)")  # fmt: skip
    parser.add_argument("--symmetric", action="store_true", default=None, help="without zero points")
    parser.add_argument("--act-order", default=None, metavar="ORDER",
                        help="of gptq: none, static or group (default: static)")  # fmt: skip
    parser.add_argument(
        "--format", default="compressed-tensors", metavar="F", help="compressed-tensors (default), gptq, awq or gguf"
    )
    parser.add_argument("--calibration", default=None, metavar="FILE",
                        help="a text to calibrate with (default: pages of Python's language reference)")  # fmt: skip
    parser.add_argument("--calibration-tokens", type=int, default=None, metavar="N", help="default: 4096")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write; a stopped run goes on there")


def quantize(args: argparse.Namespace) -> int:
    from workbench.compress.quantize import quantize_model

    result = quantize_model(
        args.model,
        Path(args.out).expanduser(),
        scheme=args.scheme,
        algorithm=args.algorithm,
        group_size=args.group_size,
        symmetric=args.symmetric,
        order=args.act_order,
        format=args.format,
        calibration=args.calibration,
        num_tokens=args.calibration_tokens,
        progress=lambda done, of: print(f"layer {done} of {of}", file=sys.stderr, flush=True),
    )
    if args.json:
        print(json.dumps(result))
    else:
        middle = statistics.median(math.inf if one["snr_db"] is None else one["snr_db"] for one in result["layers"])
        lost = "weights as they were" if math.isinf(middle) else f"median SNR {middle:.1f} dB"
        size = result["group_size"]
        groups = "one scale a row" if size == -1 else f"groups of {size}"
        print(f"{result['algorithm']} {result['scheme']}, {groups}: "
              f"{result['bytes_before'] / 1e6:.0f} MB in float16, now {result['bytes_after'] / 1e6:.0f} MB; "
              f"{lost}; {result['seconds']:.0f} s")  # fmt: skip
    for why in result["fallbacks"]:
        print(f"workbench: {why}", file=sys.stderr)
    return 0
