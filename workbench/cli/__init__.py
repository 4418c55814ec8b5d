"""The command ``workbench``. Exit 0: done; 1: what was asked for failed; 2: wrong usage; 130: interrupted.

Errors are one line on stderr that names the value, the limit and the remedy; ``--debug`` shows the traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from workbench.cli.parser import WRONG_USAGE, build_parser
from workbench.errors import IgnoredSetting, UsageError, WorkbenchError

FAILED, INTERRUPTED = 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    args = build_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            _tell_ignored_settings()
            return int(args.run(args) or 0)
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`): not an error, but Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if args.debug:
            raise
        usage = isinstance(error, UsageError)
        known = usage or isinstance(error, (WorkbenchError, OSError, MemoryError))
        hint = "" if known else f" (unexpected {type(error).__name__}; --debug shows where)"
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"workbench: {message}{hint}", file=sys.stderr)
        return WRONG_USAGE if usage else FAILED


def _tell_ignored_settings() -> None:
    """From now on such a warning is one line of ours; other warnings stay as they are."""
    others = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, IgnoredSetting):
            print(f"workbench: {message}", file=sys.stderr)
        else:
            others(message, category, *where, **more)

    warnings.simplefilter("always", IgnoredSetting)
    warnings.showwarning = tell
