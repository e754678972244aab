"""The matcher: what a record means when several patterns speak, and who may speak."""

import pytest

from denpex import library as lib
from denpex.engine.match import Matcher, expressions, telling
from denpex.library_scan import by_number, by_place, plain_scan
from denpex.model import Library, Pattern, Record, Role, Source


def pattern(name, expression, role=Role.ORIGIN, source=Source.TASK, **more):
    return Pattern(name, "unknown", role, source, (expression,), "C", "x", (), (), **more)


def meanings(patterns, text, source=Source.TASK):
    library = Library({}, tuple(patterns))
    plain = Matcher(library, by_number(plain_scan(expressions(library))), by_place(plain_scan(telling(library))))
    found = plain.match([Record(text, "s", 0, source=source)])
    fast = lib.matcher(library)
    assert fast.match([Record(text, "s", 0, source=source)]) == found
    return [match.pattern.id for match in found]


def test_a_pattern_yields_to_the_one_that_it_names():
    general, special = pattern("general", "disk error", yields_to=("special",)), pattern("special", "disk error 28")
    assert meanings([general, special], "disk error 28") == ["special"]
    assert meanings([general, special], "disk error 5") == ["general"]


def test_a_star_yields_to_any_deciding_pattern_but_not_to_context():
    generic = pattern("generic", "Traceback", yields_to=("*",))
    cascade = pattern("cascade", "peer lost", Role.CASCADE)
    advice = pattern("advice", "consider this", Role.ADVICE)
    assert meanings([generic, cascade], "Traceback peer lost") == ["cascade"]
    assert meanings([generic, advice], "Traceback consider this") == ["generic", "advice"]


def test_two_stars_leave_the_one_that_the_other_names():
    last, less = pattern("last", "Traceback", yields_to=("*", "less")), pattern("less", "worker", yields_to=("*",))
    assert meanings([last, less], "Traceback worker") == ["less"]


def test_of_a_chained_traceback_the_first_exception_is_the_cause():
    lost, full = pattern("lost", "peer lost", Role.CASCADE), pattern("full", "No space left")
    link = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert meanings([lost, full], f"peer lost{link}No space left") == ["lost"]
    assert meanings([lost, full], f"No space left{link}peer lost") == ["full"]
    assert meanings([lost, full], f"KeyError{link}peer lost") == ["lost"]


def test_companions_must_and_exclusions_must_not_be_in_the_same_record():
    only = pattern("only", "connect failed", companions=("NCCL",), exclusions=("retrying",))
    assert meanings([only], "NCCL connect failed") == ["only"]
    assert meanings([only], "connect failed") == []
    assert meanings([only], "NCCL connect failed, retrying") == []


@pytest.mark.parametrize(
    ("of_pattern", "of_record", "speaks"),
    [
        (Source.KERNEL, Source.KERNEL, True),
        (Source.TASK, Source.KERNEL, False),
        (Source.TASK, Source.SLURM, False),
        (Source.SLURM, Source.SLURM, True),
        (Source.KERNEL, Source.TASK, True),
        (Source.SLURM, Source.TASK, True),
    ],
)
def test_a_job_may_quote_anything_but_the_kernel_says_only_its_own(of_pattern, of_record, speaks):
    assert bool(meanings([pattern("p", "some words here", source=of_pattern)], "some words here", of_record)) is speaks


def test_fields_come_from_the_first_expression_that_matches():
    two = Pattern("p", "unknown", Role.ORIGIN, Source.TASK, (r"rank (?P<rank>\d+) died", "died"), "C", "x", (), ())
    library = Library({}, (two,))
    (match,) = lib.matcher(library).match([Record("rank 3 died", "s", 0)])
    assert match.fields == {"rank": "3"}
    (match,) = lib.matcher(library).match([Record("it died", "s", 0)])
    assert match.fields == {}


def test_text_that_is_not_ascii_is_matched_alike_by_both_backends():
    assert meanings([pattern("p", r"loss: [^\n]{0,20}nan")], "loss: ──────── nan") == ["p"]
