"""The pattern library: loads and checks patterns/, and compiles it for the matcher."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from denpex import library_files, resources
from denpex.engine import records
from denpex.engine.match import DECISIVE, FLAGS, Matcher, Scan, expressions
from denpex.errors import PatternError
from denpex.library_files import Place
from denpex.model import Example, Library, Match, Pattern, Role, Source, StreamData, StreamInfo, StreamKind

_SHORTEST_LITERAL = 8
# Look-around and backreferences have no linear-time matcher.
_NOT_LINEAR = re.compile(r"\(\?(?:=|!|<=|<!|\(|P=)|\\[1-9]")


def load(path: Path | None = None) -> Library:
    """Load a patterns/ tree (default: Denpex's own); raise PatternError with ``path:line`` where a file is wrong."""
    library, _, found = _read(path)
    if found:
        raise PatternError(found[0])
    return library


def _read(path: Path | None) -> tuple[Library, dict[str, Place], list[str]]:
    library, places, found = library_files.read(path or resources.path("patterns"))
    for pattern in library.patterns:
        found += [f"{places[pattern.id]}: {what}" for what in _expression_problems(pattern)]
    return library, places, found


def matcher(library: Library) -> Matcher:
    """Return the matcher: over Hyperscan where its package is installed, else over Python's own expressions."""
    try:
        return Matcher(library, hyperscan_scan(expressions(library)))
    except ImportError:
        return Matcher(library, plain_scan(expressions(library)))


def problems(path: Path | None = None, healthy: Iterable[str] = ()) -> list[str]:
    """Return everything that is wrong with a patterns/ tree, as ``path:line: sentence``; [] when it may be shipped.

    Beyond what ``load`` needs: expressions that Hyperscan takes, examples that match with the fields they state,
    counter-examples that do not, no expression without an example, no example that two deciding patterns claim
    without one yielding to the other, and silence of origins and cascades on the ``healthy`` lines.
    """
    library, places, found = _read(path)
    if found:
        return found
    for pattern in library.patterns:
        try:
            hyperscan_scan(list(pattern.expressions), cached=False)
        except ImportError:
            break
        except ValueError as error:
            found.append(f"{places[pattern.id]}: Hyperscan does not take an expression of {pattern.id}: {error}")
    if found:
        return found
    ready = matcher(library)
    for pattern in library.patterns:
        at = places[pattern.id]
        found += [f"{at}: {what}" for what in _example_problems(pattern, ready)]
    found += _unexercised(library, places)
    found += _loud(places, ready, healthy)
    return found


def matches(text: str, pattern: Pattern, ready: Matcher) -> list[Match]:
    """Return what a raw example means, read as the pattern's stream would be."""
    kind = StreamKind.KERNEL if pattern.source is Source.KERNEL else StreamKind.MIXED
    return ready.match(records.split(StreamInfo("example", kind), StreamData(text.encode())))


def _expression_problems(pattern: Pattern) -> Iterator[str]:
    main = set(pattern.expressions)
    for expression in (*pattern.expressions, *pattern.companions, *pattern.exclusions):
        try:
            compiled = re.compile(expression, FLAGS)
        except re.error as error:
            yield f"{expression!r} is not an expression: {error}"
            continue
        if _NOT_LINEAR.search(expression):
            yield f"{expression!r} uses look-around or a backreference, which are not linear in time"
        if expression.startswith((".*", ".+")):
            yield f"{expression!r} begins with {expression[:2]}, which says nothing; leave it away"
        if compiled.search(""):
            yield f"{expression!r} matches the empty text"
        # A progress line decides nothing by itself, and trainers print few words on it.
        if expression in main and pattern.role is not Role.PROGRESS and longest_literal(expression) < _SHORTEST_LITERAL:
            yield f"{expression!r} has no literal run of {_SHORTEST_LITERAL} characters, so it fires on too much"


def _example_problems(pattern: Pattern, ready: Matcher) -> Iterator[str]:
    for example in pattern.match:
        shown = f"{pattern.id}: the example {example.text[:80]!r}"
        found = matches(example.text, pattern, ready)
        own = [match for match in found if match.pattern.id == pattern.id]
        if not own:
            others = ", ".join(sorted({match.pattern.id for match in found})) or "nothing"
            yield f"{shown} does not match; it means {others}"
            continue
        missing = [
            f"{name}={value!r}"
            for name, value in example.fields.items()
            if not any(match.fields.get(name) == value for match in own)
        ]
        if missing:
            yield f"{shown} does not give {', '.join(missing)} but {dict(own[0].fields)}"
        others = _rivals(pattern, found)
        if others:
            yield f"{shown} also means {others}; let one yield to the other"
    for example in pattern.no_match:
        if any(match.pattern.id == pattern.id for match in matches(example.text, pattern, ready)):
            yield f"{pattern.id}: the counter-example {example.text[:80]!r} matches"


def _rivals(pattern: Pattern, found: list[Match]) -> str:
    """Return the deciding patterns that claim a record which ``pattern``, deciding too, claims."""
    if pattern.role not in DECISIVE:
        return ""
    claimed = {id(match.record) for match in found if match.pattern.id == pattern.id}
    return ", ".join(
        sorted(
            {
                match.pattern.id
                for match in found
                if id(match.record) in claimed and match.pattern.role in DECISIVE and match.pattern.id != pattern.id
            }
        )
    )


def _unexercised(library: Library, places: Mapping[str, Place]) -> Iterator[str]:
    for pattern in library.patterns:
        texts = [_peeled(example, pattern) for example in pattern.match]
        for expression in pattern.expressions:
            if not any(re.search(expression, text, FLAGS) for text in texts):
                yield f"{places[pattern.id]}: no example of {pattern.id} has what {expression!r} looks for"


def _peeled(example: Example, pattern: Pattern) -> str:
    kind = StreamKind.KERNEL if pattern.source is Source.KERNEL else StreamKind.MIXED
    return "\n".join(r.text for r in records.split(StreamInfo("example", kind), StreamData(example.text.encode())))


def _loud(places: Mapping[str, Place], ready: Matcher, healthy: Iterable[str]) -> Iterator[str]:
    """Tell which patterns that name a cause speak on healthy lines."""
    data = StreamData("\n".join(healthy).encode())
    for kind in (StreamKind.MIXED, StreamKind.KERNEL):
        for match in ready.match(records.split(StreamInfo("healthy", kind), data)):
            if match.pattern.role in (Role.ORIGIN, Role.CASCADE):
                yield f"{places[match.pattern.id]}: {match.pattern.id} fires on the healthy {match.record.text[:100]!r}"


def longest_literal(expression: str) -> int:
    """Return the length of the longest run of literal characters in an expression."""
    longest = run = 0
    inside = False
    i = 0
    while i < len(expression):
        c = expression[i]
        if inside:
            inside = c != "]"
            run = 0
        elif c == "\\" and i + 1 < len(expression):
            i += 1
            run = 0 if expression[i].isalnum() else run + 1
        elif c == "[":
            inside, run = True, 0
        elif c == "{":
            run = 0
            i = expression.find("}", i) if "}" in expression[i:] else i
        elif c == "(" and expression[i : i + 3] == "(?P":
            run = 0
            i = expression.find(">", i)
        elif c in "?*()|.^$+" or expression[i + 1 : i + 2] in ("?", "*", "{"):
            run = 0
        else:
            run += 1
        longest = max(longest, run)
        i += 1
    return longest


def plain_scan(listed: list[str]) -> Scan:
    """Return the second backend: slower, with the same matches."""
    compiled = [re.compile(expression.encode(), re.MULTILINE) for expression in listed]

    def scan(text: bytes) -> list[int]:
        return [number for number, expression in enumerate(compiled) if expression.search(text)]

    return scan


def hyperscan_scan(listed: list[str], *, cached: bool = True) -> Scan:
    """Return the first backend; raise ImportError without Hyperscan, ValueError for an expression it refuses."""
    import hyperscan

    flags = hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH

    def compiled() -> Any:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        try:
            database.compile(
                expressions=[e.encode() for e in listed], ids=list(range(len(listed))), flags=[flags] * len(listed)
            )
        except hyperscan.error as error:
            raise ValueError(str(error)) from error
        return database

    if cached:
        version = importlib.metadata.version("hyperscan")
        key = hashlib.sha256("\0".join([version, str(flags), *listed]).encode()).hexdigest()
        database = _cached(key, compiled, hyperscan)
    else:
        database = compiled()
    database.scratch = hyperscan.Scratch(database)
    found: list[int] = []

    def note(number: int, *_: object) -> None:
        found.append(number)

    def scan(text: bytes) -> list[int]:
        if found:
            found.clear()
        database.scan(text, match_event_handler=note)
        return found

    return scan


def _cached(key: str, compiled: Callable[[], Any], hyperscan: Any) -> Any:
    """Return the database of this content: from the cache, else compiled and kept there."""
    directory = _cache_directory()
    if directory is None:
        return compiled()
    file = directory / f"{key}.hsdb"
    try:
        return hyperscan.loadb(file.read_bytes(), mode=hyperscan.HS_MODE_BLOCK)
    except OSError:
        pass
    except hyperscan.error:
        file.unlink(missing_ok=True)
    database = compiled()
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_bytes(hyperscan.dumpb(database))
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
    return database


def _cache_directory() -> Path | None:
    """Return where compiled databases are kept: trusted code, so only in a 0700 directory of the effective user."""
    cache = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if not cache and not home:
        return None
    directory = (Path(cache) if cache else Path(home or "") / ".cache") / "denpex"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = directory.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o700 and info.st_uid == os.geteuid()
    return directory if private else None
