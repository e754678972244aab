"""How far ranks came: what survives an error, who is behind, and when sequence numbers may be compared."""

from __future__ import annotations

from denpex.engine import progress
from denpex.engine.order import Moments
from denpex.engine.progress import Progress
from denpex.model import Event, Instant, Role, Source

MS = 10**6


def at(ms, clock="n1", error=0):
    return Instant(clock, ms * MS, (ms - error) * MS, (ms + error) * MS)


def event(ms, file="err", sequence=0, **fields):
    return Event("", Role.CASCADE, Source.TASK, "", when=at(ms), file=file, sequence=sequence, fields=fields)


def seen(*steps, file="out"):
    rank = Progress()
    for number, (step, ms) in enumerate(steps):
        rank.add(step, at(ms), file, 100 + number)
    return rank


def test_progress_in_the_same_stream_follows_by_its_place():
    rank = seen((1, 10), (2, 20), file="err")
    assert rank.followed(event(15, sequence=100), None)
    assert not rank.followed(event(25, sequence=102), None)


def test_progress_in_another_stream_follows_by_its_time():
    rank = seen((1, 1000), (2, 2000))
    assert rank.followed(event(1500, sequence=999), None)
    assert not rank.followed(event(2500, sequence=0), None)


def test_output_that_is_flushed_as_the_process_ends_follows_nothing():
    """Three steps printed in one block 20 ms before the end, after an error at 1.5 s; step 0 came at 1 s."""
    rank = seen((0, 1000), (1, 1980), (2, 1980), (3, 1981))
    assert not rank.followed(event(1500), at(2000))
    assert rank.followed(event(900), at(2000))


def test_times_of_different_clocks_are_not_compared():
    rank = seen((1, 1000))
    other = Event("", Role.CASCADE, Source.TASK, "", when=at(500, "n2"), file="err")
    assert not rank.followed(other, None)


def test_the_pace_is_the_mean_time_between_progress_lines():
    assert seen((0, 0), (1, 100), (2, 400)).pace_ns() == 200 * MS
    assert seen((0, 0), (1, 100)).pace_ns() is None


def test_only_a_single_rank_can_be_behind_and_only_if_all_are_known():
    assert progress.behind({0: 45, 1: 40, 2: 45}) == 1
    assert progress.behind({0: 40, 1: 40, 2: 45}) is None
    assert progress.behind({0: 45, 1: 45}) is None
    assert progress.behind({0: 45, 1: 40, 2: None}) is None


def waits(*said):
    return {
        rank: progress.collectives([event(0, seq=str(seq), enqueued=str(enqueued), group=group)])
        for rank, (seq, enqueued, group) in enumerate(said)
    }


def test_the_rank_that_enqueued_less_is_the_one_that_did_not_come():
    said = waits((469, 470, "0"), (469, 470, "0"), (469, 468, "0"), (469, 470, "0"))
    assert progress.lagging(said, 4) == (2,)


def test_sequence_numbers_of_unnamed_or_different_groups_are_not_compared():
    assert progress.lagging(waits((96120, 96120, ""), (64088, 64088, ""), (96120, 96120, "")), 3) == ()
    assert progress.lagging(waits((9, 9, "0"), (3, 3, "1"), (9, 9, "0")), 3) == ()


def test_nothing_follows_where_a_rank_has_not_spoken_or_half_are_behind():
    assert progress.lagging(waits((9, 9, "0"), (9, 9, "0"), (9, 8, "0")), 4) == ()
    assert progress.lagging(waits((9, 9, "0"), (9, 8, "0")), 2) == ()


def test_ranks_that_all_came_but_ran_ahead_differently_are_not_told_apart():
    assert progress.lagging(waits((78, 81, "0"), (78, 79, "0"), (78, 81, "0"), (78, 80, "0")), 4) == ()


def test_a_rank_whose_last_enqueued_number_is_unknown_is_not_compared():
    assert progress.lagging(waits((78, 81, "0"), (77, "?", "0"), (78, 81, "0"), (78, 80, "0")), 4) == ()


def test_numbers_that_are_none_are_passed_over():
    assert progress.natural("12") == 12
    for text in ("", "-1", "²", "9" * 5000, "1e9"):
        assert progress.natural(text) is None
    assert progress.collectives([event(0, seq="9" * 5000)]) == []


def test_moments_answer_as_comparing_every_pair_would():
    """All and any of Moments against Instant.before, over a grid of moments on three clocks."""
    listed = [(rank, at(ms, clock, error)) for rank, (ms, clock, error) in enumerate(
        [(10, "n1", 2), (14, "n1", 2), (13, "n2", 3), (30, "n2", 3), (12, "n3", 1)])]  # fmt: skip
    moments = Moments(listed)
    for ms in range(45):
        for clock in ("n1", "n2", "n9"):
            when = at(ms, clock, 2)
            for but in (None, 0, 2):
                others = [m for rank, m in listed if rank != but]
                assert moments.all_after(when, but=but) == all(when.before(m) is True for m in others)
                assert moments.all_before(when, but=but) == all(m.before(when) is True for m in others)
                assert moments.any_before(when, but=but) == any(m.before(when) is True for m in others)
    assert not Moments([]).all_after(at(1))
    assert Moments([(0, None)]).unknown
