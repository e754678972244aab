"""The pattern library: every file checks, every example does what it says, in both backends."""

import os
import time

import pytest
import yaml

from denpex import library as lib
from denpex import library_scan
from denpex.engine import records
from denpex.engine.match import Matcher, expressions, telling
from denpex.errors import PatternError
from denpex.model import Record, Source, StreamData, StreamInfo, StreamKind
from denpex.taxonomy import CATEGORY_OF
from tests import goodlogs

LIBRARY = lib.load()
MATCHER = lib.matcher(LIBRARY)
PLAIN = Matcher(
    LIBRARY,
    library_scan.by_number(library_scan.plain_scan(expressions(LIBRARY))),
    library_scan.by_place(library_scan.plain_scan(telling(LIBRARY))),
)


def read(pattern, text):
    kind = StreamKind.KERNEL if pattern.source is Source.KERNEL else StreamKind.MIXED
    return records.split(StreamInfo("example", kind), StreamData(text.encode()))


def test_nothing_is_wrong_with_the_library():
    """Form, expressions, examples, counter-examples, rival meanings, silence on healthy lines."""
    assert lib.problems(healthy=goodlogs.lines(1200)) == []


def test_both_backends_find_the_same_on_every_example():
    pytest.importorskip("hyperscan")
    for pattern in LIBRARY.patterns:
        for example in (*pattern.match, *pattern.no_match):
            found = read(pattern, example.text)
            assert MATCHER.match(found) == PLAIN.match(found), (pattern.id, example.text)


def test_both_backends_find_the_same_on_healthy_lines():
    found = records.split(
        StreamInfo("x", StreamKind.MIXED), StreamData("\n".join(goodlogs.lines(600, seed=2)).encode())
    )
    assert MATCHER.match(found) == PLAIN.match(found)


def test_no_expression_is_slow_on_a_hostile_record():
    """A record is at most some 64 KiB; a job may fill it with near misses of any expression."""
    for pattern in LIBRARY.patterns:
        for example in pattern.match:
            text = "\n".join(record.text for record in read(pattern, example.text))
            for hostile in (text[:-3] * (65536 // len(text)), text.replace("\n", " ")[:40] * (65536 // 40)):
                began = time.perf_counter()
                MATCHER.match([Record(hostile, "s", 0, source=pattern.source)])
                assert time.perf_counter() - began < 1.5, (pattern.id, hostile[:80])


def test_every_class_has_its_page():
    """A verdict may name any of them, with or without a pattern, and its reader needs the text."""
    assert LIBRARY.classes.keys() == CATEGORY_OF.keys()


def test_a_command_holds_only_fields_that_the_scheduler_or_root_knows(tmp_path):
    write(tmp_path, {"command": "rm {{ path }}"}, {})
    assert any("may not name the field 'path'" in problem for problem in lib.problems(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class": "no-such-class"}, "is not a failure class"),
        ({"class": "disk-quota-exceeded"}, "belongs into"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"route": "somewhere"}, "not a valid Route"),
        ({"drain": {"policy": "always"}}, "drain.policy"),
        ({"drain": {"policy": "conditional"}}, "a condition exactly where"),
        ({"symptoms": [11]}, "list of texts"),
        ({"triggers": ["nothing-like-it"]}, "not a failure class"),
    ],
)
def test_a_wrong_class_file_is_an_error_with_its_place(tmp_path, change, message):
    file = write(tmp_path, change, {})
    with pytest.raises(PatternError, match=message) as caught:
        lib.load(tmp_path)
    assert str(caught.value).startswith(f"{file}:")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expressions": ["short"]}, "no literal run"),
        ({"expressions": ["look(?=ahead) of it all"]}, "look-around"),
        ({"expressions": ["(same words) and \\1"]}, "look-around or a backreference"),
        ({"expressions": ["unclosed (group of words"]}, "is not an expression"),
        ({"expressions": [".*everything before it"]}, "begins with"),
        ({"expressions": ["(?:perhaps nothing)?"]}, "matches the empty text"),
        ({"tier": "D"}, "tier"),
        ({"onset": "ms"}, "onset"),
        ({"yields_to": ["nothing-like-it"]}, "which does not exist"),
        ({"examples": {"match": ["x"]}}, "no_match"),
        ({"examples": {"match": [{"text": "x", "because": "y"}], "no_match": ["y"]}}, "unknown key 'because'"),
        ({"id": "Wrong_Id"}, "small letters"),
    ],
)
def test_a_wrong_pattern_is_an_error_with_its_place(tmp_path, change, message):
    file = write(tmp_path, {}, change)
    with pytest.raises(PatternError, match=message) as caught:
        lib.load(tmp_path)
    assert str(caught.value).startswith(f"{file}:")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": {"match": ["something else"], "no_match": ["y"]}}, "does not match"),
        ({"examples": {"match": ["a telling message"], "no_match": ["a telling message"]}}, "counter-example"),
        (
            {"examples": {"match": [{"text": "a telling message", "fields": {"x": "1"}}], "no_match": ["y"]}},
            "does not give x='1'",
        ),
        ({"expressions": ["a telling message", "another message"]}, "no example of some-pattern"),
        ({"expressions": ["a telling message", "^healthy words"]}, "fires on the healthy"),
    ],
)
def test_problems_names_what_examples_and_healthy_lines_show(tmp_path, change, message):
    file = write(tmp_path, {}, change)
    found = lib.problems(tmp_path, ["healthy words"])
    assert any(message in problem and problem.startswith(f"{file}:") for problem in found), found


def test_two_patterns_that_claim_one_message_are_a_problem_until_one_yields(tmp_path):
    rival = {
        "id": "rival", "role": "cascade", "stream": "task", "expressions": ["telling message"], "tier": "C",
        "source": "x@1:y", "examples": {"match": ["telling message b"], "no_match": ["another"]},
    }  # fmt: skip
    file = write(tmp_path, {}, {}, rival)
    assert any("also means rival" in problem for problem in lib.problems(tmp_path))
    file.unlink()
    file.parent.rmdir()
    write(tmp_path, {}, {}, rival | {"yields_to": ["some-pattern"]})
    assert lib.problems(tmp_path) == []


def test_a_database_is_cached_only_in_a_private_directory_of_the_own_user(tmp_path, monkeypatch):
    pytest.importorskip("hyperscan")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert list(library_scan.hyperscan_scan(["some words"])(b"these are some words")) == [(0, 20)]
    (kept,) = (tmp_path / "denpex").iterdir()
    kept.write_bytes(b"damaged")
    assert list(library_scan.hyperscan_scan(["some words"])(b"these are some words")) == [(0, 20)]
    kept.unlink(missing_ok=True)
    (tmp_path / "denpex").chmod(0o755)
    library_scan.hyperscan_scan(["some words"])
    assert list((tmp_path / "denpex").iterdir()) == []
    if os.geteuid() == 0:
        (tmp_path / "denpex").chmod(0o700)
        os.chown(tmp_path / "denpex", 12345, -1)
        library_scan.hyperscan_scan(["some words"])
        assert list((tmp_path / "denpex").iterdir()) == []


@pytest.mark.parametrize(
    ("expression", "length"), [("ab[cd]efgh", 4), (r"a\.b", 3), (r"abc\d+de", 3), ("abcd?", 3), ("(?P<name>xyz)", 3)]
)
def test_the_longest_literal_run_is_counted(expression, length):
    assert lib.longest_literal(expression) == length


def write(root, class_change, pattern_change, *more):
    """Write a small valid class file with changes."""
    pattern = {
        "id": "some-pattern", "role": "origin", "stream": "task", "expressions": ["a telling message"], "tier": "C",
        "source": "x@1:y", "examples": {"match": ["a telling message"], "no_match": ["another"]},
    } | pattern_change  # fmt: skip
    document = {
        "class": "disk-full", "title": "t", "meaning": "m", "mechanism": "m", "symptoms": [], "not_from": [],
        "fix": ["f"], "command": "", "route": "environment", "requeue": "no", "drain": {"policy": "no"},
        "references": [], "patterns": [pattern, *more],
    } | class_change  # fmt: skip
    file = root / "environment_configuration" / "disk-full.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(document))
    return file
