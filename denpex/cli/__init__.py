"""The command `denpex`: finds the verb's module, and turns errors into one sentence on standard error."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys

VERBS: dict[str, str] = {
    "show": "print the verdict on a job",
    "list": "list jobs with their verdicts",
    "run": "run a command as one captured task",
    "diagnose": "diagnose logs, a spool or an archive",
    "worker": "serve: diagnose ended jobs and answer `show`",
    "config": "check the configuration and write what nodes and Slurm need",
}
"""Verb -> what it does; denpex/cli/<verb>.py has ``main(argv) -> exit status``."""


def main(argv: list[str] | None = None) -> int:
    """Run ``denpex ARGV``; return the exit status (2: the command line cannot be understood)."""
    words = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:
        print("denpex: standard output is closed; there is nowhere to print to", file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets its escape, not an error instead of the verdict.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has left; Python would complain again when it flushes at exit.
        sys.stderr.close()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        print(f"denpex: the output cannot be written: {error.strerror}", file=sys.stderr)
        # Python would try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from denpex import __version__

        print(f"denpex {__version__}")
        return 0
    if words[0] not in VERBS:
        print(f"denpex: there is no verb {words[0]!r}; `denpex --help` lists them", file=sys.stderr)
        return 2
    verb = importlib.import_module(f"denpex.cli.{words[0]}")
    from denpex.errors import DenpexError

    try:
        status: int = verb.main(words[1:])
    except DenpexError as error:
        print(f"denpex {words[0]}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return status


def _usage() -> str:
    verbs = "\n".join(f"  {name:<10} {text}" for name, text in VERBS.items())
    return f"usage: denpex VERB ...\n\n{verbs}\n\n`denpex VERB --help` tells more."
