"""`denpex show JOBID`: the verdict on a job, as a report, columns or JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from typing import Any

from denpex.cli import output

_DEFAULT = "JobID,JobName,State,ExitCode,Class,Confidence,Rank,Node"


def main(argv: list[str]) -> int:
    """Print the verdicts on the jobs in ``argv``; an unknown job is a header and nothing, as with sacct."""
    parser = argparse.ArgumentParser(prog="denpex show", description="Print the verdict on a job.")
    parser.add_argument("jobs", metavar="JOBID", nargs="*", help="123, 123_4, 123_[1-3], 123+1, comma lists")
    parser.add_argument("-j", "--jobs", dest="more", metavar="JOBID", help="the same, as sacct has it")
    parser.add_argument("-D", "--duplicates", action="store_true", help="all runs of a requeued job")
    output.add_options(parser)
    options = parser.parse_args(argv)
    if options.helpformat:
        from denpex.render import table

        output.write(table.help_format())
        return 0
    jobs = ",".join([*options.jobs, *([options.more] if options.more else [])])
    if not jobs:
        parser.error("which job? denpex show JOBID; denpex list lists them")
    if options.format:
        from denpex.render import table

        table.parse(options.format)
    from denpex import client, config, jobid

    jobid.parse(jobs)
    rows = client.ask(config.load(), {"verb": "show", "jobs": jobs, "duplicates": options.duplicates})["rows"]
    if options.json:
        documents = [row["document"] or _pending(row) for row in rows]
        # One job is one document; several are a list of them.
        output.write(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
    elif output.is_table(options) or not rows:
        output.print_table(rows, options, _DEFAULT)
    else:
        output.write(f"\n\n{'-' * _width()}\n".join(_report(row) for row in rows))
    if not rows:
        print(
            f"denpex show: no verdict on {jobs[:80]!r} is known, or it is not your job; completed jobs take some"
            " seconds, running ones have none",
            file=sys.stderr,
        )
    return 0


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 80) if sys.stdout.isatty() else 80


def _report(row: dict[str, Any]) -> str:
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if row["document"] is None:
        from denpex.render import pending

        return pending.report(row, time.time(), color=color, width=_width())
    from denpex.render import terminal

    return terminal.report(row["document"], color=color, width=_width())


def _pending(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a run that waits: the document's first keys, without a verdict."""
    return {
        "format": 1,
        "cluster": row["cluster"],
        "job_id": row["job_id"],
        "array": {"job": row["array_job"], "task": row["array_task"]},
        "restart": row["restart"],
        "revision": None,
        "state": row["state"] or None,
        "category": None,
        "failure_class": None,
        "awaited": row["awaited"],
        "waiting_since": row["waiting_since"],
    }
