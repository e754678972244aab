"""The pattern library: loads and checks patterns/, and compiles it for the matcher."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from denpex import library_files, resources
from denpex.engine import records
from denpex.engine.match import DECISIVE, FLAGS, Matcher, expressions, telling
from denpex.errors import PatternError
from denpex.library_files import Place
from denpex.library_scan import by_number, by_place, hyperscan_scan, plain_scan
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
        scan, find = hyperscan_scan(expressions(library)), hyperscan_scan(telling(library))
    except ImportError:
        scan, find = plain_scan(expressions(library)), plain_scan(telling(library))
    return Matcher(library, by_number(scan), by_place(find))


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
