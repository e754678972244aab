"""`denpex list`: jobs with their verdicts, by sacct's filters."""

from __future__ import annotations

import argparse
import json
import sys

from denpex.cli import output
from denpex.errors import UsageError

_DEFAULT = "JobID,JobName%14,User,State,ExitCode,End,Class%28,Confidence%5,Rank,Node"

# Slurm's short state words (sacct(1), "Job state codes"); a verdict needs an end, so RUNNING and PENDING are no use.
STATES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED", "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED", "TO": "TIMEOUT",
}  # fmt: skip


def main(argv: list[str]) -> int:
    """Print one line a job; by default those that ended today."""
    parser = argparse.ArgumentParser(prog="denpex list", description="List jobs with their verdicts.")
    parser.add_argument("-S", "--starttime", metavar="TIME", default="midnight", help="ended after (%(default)s)")
    parser.add_argument("-E", "--endtime", metavar="TIME", default="now", help="begun before (%(default)s)")
    for short, long, help_text in (
        ("-u", "--user", "of these users (names or uids)"),
        ("-N", "--nodelist", "on these nodes: n1 or n[1-4]"),
        ("-s", "--state", "in these states: F, TO, FAILED"),
        ("-A", "--account", "of these accounts"),
        ("-r", "--partition", "of these partitions"),
    ):
        parser.add_argument(short, long, metavar="LIST", help=help_text)
    parser.add_argument("--category", metavar="LIST", help="with a verdict of these categories")
    parser.add_argument("--class", dest="failure_class", metavar="LIST", help="with these failure classes")
    output.add_options(parser)
    options = parser.parse_args(argv)
    from denpex.render import table

    if options.helpformat:
        output.write(table.help_format())
        return 0
    table.parse(options.format or _DEFAULT)
    request = _request(options)
    from denpex import client, config

    reply = client.ask(config.load(), request)
    if options.json:
        output.write(json.dumps({"format": 1, "jobs": table.documents(reply["rows"])}, indent=2))
    else:
        output.print_table(reply["rows"], options, _DEFAULT)
    if reply.get("more"):
        print(f"denpex list: only the first {len(reply['rows'])} are shown; narrow the time", file=sys.stderr)
    return 0


def _request(options: argparse.Namespace) -> dict[str, object]:
    """Return the request that the options mean; raises UsageError."""
    import time

    from denpex.times import parse

    now = time.time()
    start, end = parse(options.starttime, now), parse(options.endtime, now)
    if end < start:
        raise UsageError("the time of -E lies before that of -S; nothing can be in between")
    request: dict[str, object] = {"verb": "list", "start": start, "end": end}
    for name in ("user", "account", "partition", "failure_class"):
        words = _words(getattr(options, name))
        if words:
            request[name] = words
    states = [STATES.get(word.upper(), word.upper()) for word in _words(options.state)]
    for state in states:
        if state not in STATES.values():
            raise UsageError(f"{state!r} is not a state in which a job ends; they are {', '.join(STATES.values())}")
    if states:
        request["state"] = states
    categories = [word.lower() for word in _words(options.category)]
    if categories:
        from denpex.model import Category

        known = [str(category) for category in Category]
        for category in categories:
            if category not in known:
                raise UsageError(f"{category!r} is not a category; they are {', '.join(known)}")
        request["category"] = categories
    if options.nodelist:
        from denpex.slurm import expand_hostlist

        request["node"] = list(expand_hostlist(options.nodelist))
    return request


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
