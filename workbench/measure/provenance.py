"""Where a number comes from: the code, the machine and the libraries. Stands beside every result."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from workbench.errors import WorkbenchError
from workbench.machine import cpu_name


def provenance(device: torch.device) -> dict[str, Any]:
    """Commit (None outside a checkout), date, device and versions, ready for JSON."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "commit": commit,
        "dirty": bool(_git("status", "--porcelain")) if commit else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": gpu or "cpu",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
    }


def driver() -> str:
    """Version of the NVIDIA driver. Raises WorkbenchError where it cannot be asked: a record must name it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise WorkbenchError(f"the driver's version is unknown: nvidia-smi failed ({error})") from error
    return done.stdout.splitlines()[0].strip()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
