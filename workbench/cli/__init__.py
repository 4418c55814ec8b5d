"""The command ``workbench``. Exit 0: done; 1: what was asked for failed; 2: wrong usage; 130: interrupted.

Errors are one line on stderr that names the value, the limit and the remedy; ``--debug`` shows the traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from workbench.cli.parser import WRONG_USAGE, build_parser
from workbench.errors import UsageError, WorkbenchError

FAILED, INTERRUPTED = 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    args = build_parser().parse_args(argv)
    try:
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
