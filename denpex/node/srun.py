"""The srun wrapper's brain: finds where the program starts in srun's words, and puts the capture in front of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The option column of srun --help; explanations are indented further. "-B  --extra-node-info" has no comma in 22.05.
_HELP_LINE = re.compile(r"^\s{1,8}(?:-(?P<short>\w),?\s+)?(?:--(?P<long>[\w-]+)(?P<rest>\S*))?")
_PLUGINS = "Options provided by plugins:"

# What srun(1) of 22.05 to 26.05 documents and --help does not list, or lists without its value.
_NOT_IN_HELP = {
    "accel-bind": "yes", "async": "no", "container": "yes", "container-id": "yes", "cpu-bind": "yes",
    "disable-x11": "no", "external-launcher": "optional", "extra": "yes", "gid": "yes", "hint": "yes",
    "interactive": "no", "mem-bind": "yes", "msg-timeout": "yes", "network": "yes", "nodefile": "yes",
    "ntasks-per-gpu": "yes", "ntasks-per-tres": "yes", "open-mode": "yes", "prefer": "yes", "segment": "yes",
    "stepmgr": "no", "tasks-per-node": "yes", "test-only": "no", "tres-bind": "yes", "tres-per-task": "yes",
    "treewidth": "yes", "uid": "yes", "wait-for-children": "no", "whole": "no", "x11": "optional",
}  # fmt: skip
# Short options that take a value only where it is attached, though --help does not say so (srun(1)).
_OPTIONAL_SHORT = {"I", "K", "k"}
# With these there is no program, or one that cannot have another put in front of it. "" where no capture is lost.
_UNTOUCHED = {
    "multi-prog": "--multi-prog takes a file of programs",
    "pty": "--pty gives the program a terminal",
    "bcast": "--bcast copies the program's file to the nodes",
    "test-only": "", "help": "", "usage": "", "version": "",
}  # fmt: skip
# The same by srun's input environment (srun(1), "INPUT ENVIRONMENT VARIABLES").
_UNTOUCHED_BY = {
    "SLURM_SRUN_MULTI": "SLURM_SRUN_MULTI stands for --multi-prog",
    "SLURM_BCAST": "SLURM_BCAST stands for --bcast",
    "SLURM_CONTAINER": "the program runs in a container (SLURM_CONTAINER)",
    "SRUN_CONTAINER": "the program runs in a container (SRUN_CONTAINER)",
    "SRUN_CONTAINER_ID": "the program runs in a container (SRUN_CONTAINER_ID)",
}

# On the node: the capture where Denpex is installed there, else the program alone. bash -p as in hooks/srun; it sets no
# variable, for the program may have one of that name.
_ON_NODE = '[ -x "$1" ] && [ -r "$2/denpex/node/run.py" ] && exec "$1" -I -S -c "$3" "$2" -- "${@:4}"\nexec "${@:4}"'
_RUN = (
    "import os, sys; sys.path.insert(0, sys.argv.pop(1)); from denpex.node import run; os._exit(run.main(sys.argv[1:]))"
)


class Options(NamedTuple):
    """What the installed srun's help says: option -> whether it takes a value ("no", "yes", "optional").

    ``names``: short option -> its long name; ``plugins``: the long options that plugins provide.
    """

    short: dict[str, str]
    long: dict[str, str]
    names: dict[str, str]
    plugins: set[str]


class Untouched(Exception):  # noqa: N818 - not an error: the command line is left as it is
    """A command line that is not rewritten; the message is the gap ("" where nothing is lost)."""


def parse_help(text: str) -> Options:
    """Read srun's --help: ``-n, --ntasks=ntasks``, ``--nice[=value]``, ``--pty``."""
    options = Options({}, {}, {}, set())
    ours, _, plugins = text.partition(_PLUGINS)
    for part, lines in (("srun", ours.splitlines()), ("plugins", plugins.splitlines())):
        for match in filter(None, map(_HELP_LINE.match, lines)):
            short, long, rest = match["short"], match["long"], match["rest"] or ""
            takes = "optional" if rest.startswith("[=") else "yes" if rest.startswith(("=", "{")) else "no"
            if long:
                options.long.setdefault(long, _NOT_IN_HELP.get(long, takes))
                if part == "plugins":
                    options.plugins.add(long)
            if short:
                options.short.setdefault(short, "optional" if short in _OPTIONAL_SHORT else takes)
                options.names.setdefault(short, long or short)
    if options.long:
        for name, takes in _NOT_IN_HELP.items():
            options.long.setdefault(name, takes)
    return options


class Words(NamedTuple):
    """A read command line: where the program stands in it, and the long names of the options before."""

    program: int
    given: set[str]


def read_words(words: Sequence[str], options: Options) -> Words:
    """Read srun's words (without "srun"); raise Untouched where there is no program to put the capture in front of."""
    i = 0
    given: set[str] = set()
    while i < len(words):
        word = words[i]
        if word == "--":
            i += 1
            break
        if word.startswith("--"):
            i += _long(word, options, given)
        elif word.startswith("-") and len(word) > 1:
            i += _short(word, options, given)
        else:
            break
    if i >= len(words):
        raise Untouched("")
    if ":" in words[i:]:
        raise Untouched('":" starts a heterogeneous step')
    return Words(i, given)


def _note(name: str, given: set[str]) -> None:
    if name in _UNTOUCHED:
        raise Untouched(_UNTOUCHED[name])
    if name.startswith("container"):
        raise Untouched(f"the program runs in a container (--{name})")
    given.add(name)


def _long(word: str, options: Options, given: set[str]) -> int:
    """Return how many words the long option takes."""
    name, equals, _ = word[2:].partition("=")
    full = name
    if name not in options.long:
        # getopt_long(3) takes an unambiguous beginning of a name.
        meant = [known for known in options.long if known.startswith(name)]
        if len(meant) != 1:
            raise Untouched(f"the option --{name} is not known from srun --help")
        full = meant[0]
    _note(full, given)
    if options.long[full] != "yes" or equals:
        return 1
    if full in options.plugins:
        raise Untouched(f"--help does not tell whether a plugin's option needs its value (--{full})")
    return 2


def _short(word: str, options: Options, given: set[str]) -> int:
    """Return how many words a cluster of short options takes."""
    for position, letter in enumerate(word[1:], start=1):
        takes = options.short.get(letter)
        if takes is None:
            raise Untouched(f"the option -{letter} is not known from srun --help")
        _note(options.names[letter], given)
        if takes == "optional":
            return 1
        if takes == "yes":
            return 1 if position < len(word) - 1 else 2
    return 1


def rewrite(words: Sequence[str], help_text: str, environ: Iterable[str], prefix: Sequence[str]) -> list[str]:
    """Return srun's words with ``prefix`` in front of the program; raise Untouched where they stay as they are.

    Steps and jobs are named after the program: -J keeps that name, where the user has not given one.
    """
    read = read_words(words, parse_help(help_text))
    environ = set(environ)
    for name, reason in _UNTOUCHED_BY.items():
        if name in environ:
            raise Untouched(reason)
    if "jobid" in read.given and "SLURM_JOB_ID" not in environ:
        raise Untouched("")  # somebody looks into a running job from outside
    program = words[read.program]
    named = os.path.basename(program)
    # Outside an allocation -J would also name the job, for which SLURM_JOB_NAME goes before the program's name.
    keep = named and "job-name" not in read.given and ("SLURM_JOB_ID" in environ or "SLURM_JOB_NAME" not in environ)
    return [*(["-J", named] if keep else []), *words[: read.program], *prefix, *words[read.program :]]


def quoted(words: Iterable[str]) -> bytes:
    """Return words as one command line for a shell."""
    return b" ".join(b"'" + os.fsencode(word).replace(b"'", b"'\\''") + b"'" for word in words)


def main() -> None:
    """Print for hooks/srun what it shall become; argv: package, the real srun, srun's words; stdin: srun --help."""
    package, srun, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    prefix = ["/bin/bash", "-p", "-c", _ON_NODE, "denpex", sys.executable, package, _RUN]
    try:
        words = rewrite(words, sys.stdin.buffer.read().decode("utf-8", "replace"), os.environ, prefix)
    except Untouched as reason:
        if str(reason):
            _note_gap(str(reason))
    line = b"exec -a srun " + quoted([srun, *words]) + b"\n"
    while line:
        line = line[os.write(1, line) :]


def _note_gap(reason: str) -> None:
    """Note in the job's claims, where this host has an open run, that a step is not captured."""
    from denpex import spool
    from denpex.node import run_watch, settings

    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return
    try:
        with open(os.path.join(settings.load()[0]["run_dir"], "jobs", job), encoding="utf-8") as file:
            user = os.path.join(file.read().strip(), spool.USER)
    except OSError:
        return
    claims = run_watch.Claims(user, None, None, os.environ.get("SLURMD_NODENAME", ""))
    claims.gap(f"a step was started by srun without capture: {reason}", "a command line that srun's wrapper can take")
