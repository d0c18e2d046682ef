"""`python -m openwork`: the command, as the binary `openwork` runs it."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command with the arguments of this process."""
    # Ctrl-C ends the process at once, as it ends the binary; the interpreter would wait for the command to return.
    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.run_command(["openwork", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
