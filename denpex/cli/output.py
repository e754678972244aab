"""What `show` and `list` share: sacct's output options, and writing that no terminal's character set can stop."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from typing import Any


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add -o/--format, -n, -p, -P, --delimiter, --json, -e."""
    parser.add_argument("-o", "--format", metavar="FIELDS", help="columns, as field or field%%width (-width: left)")
    parser.add_argument("-n", "--noheader", action="store_true", help="no header")
    parser.add_argument("-p", "--parsable", action="store_true", help="columns ended by |")
    parser.add_argument("-P", "--parsable2", action="store_true", help="columns separated by |")
    parser.add_argument("--delimiter", metavar="TEXT", help="another separator for -p and -P")
    parser.add_argument("--json", action="store_true", help="JSON")
    parser.add_argument("-e", "--helpformat", action="store_true", help="list the fields and end")


def is_table(options: argparse.Namespace) -> bool:
    """Tell whether an option asks for columns."""
    return bool(options.format or options.parsable or options.parsable2 or options.noheader or options.delimiter)


def write(text: str) -> None:
    """Print; characters that the terminal's character set lacks become "?"."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(ValueError):
            sys.stdout.reconfigure(errors="replace")
    print(text)


def print_table(rows: list[dict[str, Any]], options: argparse.Namespace, default: str) -> None:
    """Print rows as columns."""
    from denpex.render import table

    delimiter = (options.delimiter or "|") if options.parsable or options.parsable2 else None
    columns = table.parse(options.format or default)
    lines = table.table(rows, columns, header=not options.noheader, delimiter=delimiter, trailing=not options.parsable2)
    if lines:
        write("\n".join(lines))
