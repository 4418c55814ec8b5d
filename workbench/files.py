"""Small files that several kernels may read and write at once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes the whole file or, when that fails, nothing: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with scratch.open("x", encoding="utf-8") as file:  # not of `tempfile`, whose files are their maker's alone
            file.write(text)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
