"""`denpex diagnose`: the same diagnosis as the worker's, of any logs, archive or spool, with nothing set up."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from denpex.errors import InputError, UsageError

_EPILOG = """Understood: rank_N.log and the like (one task each), job.log and any other *.log, *.out, *.err or *.txt,
slurm-JOBID.out, node_NAME.dmesg and other kernel logs, slurm.txt (sacct, scontrol show job), run directories of a
spool; plain, gzip, bzip2 or xz; alone, in a directory or in a tar archive; "-" is standard input."""


def main(argv: list[str]) -> int:
    """Diagnose the paths in ``argv``; 0 whenever they could be read, whatever the verdict."""
    parser = argparse.ArgumentParser(
        prog="denpex diagnose", description="Say why a job failed, from its logs.", epilog=_EPILOG
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=_path, help="a log file, directory or archive; - : stdin"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--job-id", metavar="ID", help="the job to read, where a spool holds several")
    options = parser.parse_args(argv)
    if options.job_id is not None and not re.fullmatch(r"[0-9]{1,18}", options.job_id):
        raise UsageError(f"{options.job_id[:80]!r} is not a job id: --job-id takes the number that SLURM_JOB_ID has")
    document = diagnosis(options.paths, options.job_id)
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    from denpex.render import terminal

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size().columns, 80) if sys.stdout.isatty() else 80
    print(terminal.report(document, color=color, width=width))
    return 0


def _path(word: str) -> Path:
    if not word:
        # Path("") is the directory that one happens to be in.
        raise InputError("an empty name was given (a variable that is not set?); name a log file, archive or directory")
    return Path(word)


def diagnosis(paths: list[Path], job_id: str | None = None) -> dict[str, Any]:
    """Return the verdict's JSON document on what lies at ``paths``. Raises InputError where nothing can be read."""
    from denpex import diagnose, ingest, library

    snapshot = ingest.load(paths, job_id)
    patterns = library.load()
    verdict = diagnose.diagnose(snapshot, patterns, library.matcher(patterns))
    return verdict.to_json()
