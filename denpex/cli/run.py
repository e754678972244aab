"""`denpex run -- CMD`: the command-line verb; the work is denpex/node/run.py's."""

from __future__ import annotations

import sys

from denpex.node import run


def main(argv: list[str]) -> int:
    """Run ``denpex run ARGV``; a script that is not executable runs under this Python."""
    return run.main(argv, python=sys.executable)
