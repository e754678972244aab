"""The verdict database."""

import os
import sqlite3
import stat
from dataclasses import replace

import pytest

from denpex.errors import StoreError
from denpex.model import Category, Evidence, GpuRef, Place, Role, Source
from denpex.store import Reader, Store
from tests.unit.samples import START, job, verdict


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "denpex.db")
    yield made
    made.close()


def rows(store, where="1", values=(), **options):
    return Reader(store.path).find(where, values, **{"documents": True, **options})


def test_the_same_verdict_again_changes_nothing(store):
    assert store.save(verdict(), 1.0) == 1
    assert store.save(verdict(), 2.0) == 1
    assert store.save(replace(verdict(), revision=7), 3.0) == 1
    (row,) = rows(store)
    assert (row["revision"], row["created"]) == (1, 1.0)


def test_another_verdict_on_the_same_run_is_its_next_revision_and_history_stays(store):
    store.save(verdict(), 1.0)
    assert store.save(verdict(confidence=0.99), 2.0) == 2
    (row,) = rows(store)
    assert row["revision"] == row["document"]["revision"] == 2
    assert row["document"]["confidence"] == 0.99
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (2,)
    connection.close()


def test_a_requeued_job_has_one_row_for_each_run(store):
    store.save(verdict(job(restart=0)), 1.0)
    store.save(verdict(job(restart=1, start=START + 100, end=START + 200)), 2.0)
    assert [row["restart"] for row in rows(store)] == [0, 1]


def test_a_run_is_known_when_it_has_a_verdict_and_not_while_it_waits(store):
    store.waiting(job(), ["n3"], 1.0)
    assert not store.known("lab", "4711", int(START))
    store.save(verdict(), 2.0)
    assert store.known("lab", "4711", int(START))
    assert not store.known("lab", "4711", int(START) + 1)


def test_a_waiting_run_says_what_is_awaited_and_since_when_until_its_verdict(store):
    store.waiting(job(), ["n3", "n4"], 10.0)
    store.waiting(job(), ["n4"], 20.0)
    (row,) = rows(store)
    assert (row["awaited"], row["waiting_since"], row["document"]) == (["n4"], 10.0, None)
    store.save(verdict(), 30.0)
    (row,) = rows(store)
    assert (row["awaited"], row["waiting_since"]) == ([], None)


def test_what_is_known_of_a_run_is_not_forgotten_by_a_record_that_knows_less(store):
    store.waiting(job(), [], 1.0)
    store.save(verdict(job(uid=None, user="", nodes=())), 2.0)
    (row,) = rows(store)
    assert (row["uid"], row["user"], row["nodes"]) == (1001, "alice", "n1,n2,n3,n4")


def test_a_run_that_never_started_has_start_0(store):
    store.save(verdict(job(start=None)), 1.0)
    assert rows(store)[0]["start"] == 0


def test_the_database_and_its_side_files_are_the_workers_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        made = Store(tmp_path / "denpex.db")
        made.save(verdict(), 1.0)
        files = list(tmp_path.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        made.close()
    finally:
        os.umask(before)


def test_a_database_that_was_readable_by_others_is_closed_to_them(tmp_path):
    (tmp_path / "denpex.db").touch(mode=0o666)
    Store(tmp_path / "denpex.db").close()
    assert stat.S_IMODE((tmp_path / "denpex.db").stat().st_mode) == 0o600


def test_it_is_opened_again_with_everything_in_it_and_foreign_keys_hold(tmp_path):
    Store(tmp_path / "denpex.db").close()
    made = Store(tmp_path / "denpex.db")
    made.save(verdict(), 1.0)
    made.close()
    again = Store(tmp_path / "denpex.db")
    assert len(rows(again)) == 1
    connection = again._db.conn
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(
            "INSERT INTO verdicts SELECT 999, revision, category, failure_class, confidence, scope, rank, node, title,"
            " created, document FROM verdicts"
        )
    again.close()


def test_a_file_that_is_no_database_is_a_sentence(tmp_path):
    (tmp_path / "denpex.db").write_bytes(b"not a database at all, but long enough to be looked at" * 50)
    with pytest.raises(StoreError, match=r"denpex\.db cannot be used: file is not a database"):
        Store(tmp_path / "denpex.db")


def test_a_directory_that_is_not_there_is_a_sentence_for_the_reader(tmp_path):
    with pytest.raises(StoreError, match="cannot be used: unable to open"):
        Reader(tmp_path / "none" / "denpex.db").find("1", [], documents=False)


def test_a_locked_database_is_a_sentence_and_nothing_is_half_written(store):
    store._db.conn.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.save(verdict(), 1.0)
    other.execute("ROLLBACK")
    other.close()
    assert store.save(verdict(), 1.0) == 1


def test_a_full_disk_is_a_sentence_and_the_next_try_succeeds(store):
    store.save(verdict(), 1.0)
    pages = store._db.conn.execute("PRAGMA page_count").fetchone()[0]
    store._db.conn.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.save(verdict(summary="long " * 100_000), 2.0)
    store._db.conn.execute("PRAGMA max_page_count = 1000000")
    assert len(rows(store)) == 1
    assert store.save(verdict(summary="long " * 100_000), 2.0) == 2


def test_a_database_of_a_later_denpex_is_left_alone(tmp_path):
    made = Store(tmp_path / "denpex.db")
    made._db.conn.execute("INSERT INTO migrations VALUES ('from the future', 0)")
    made.close()
    with pytest.raises(StoreError, match="later Denpex"):
        Store(tmp_path / "denpex.db")


def test_a_migration_that_fails_halfway_leaves_the_schema_before_it(tmp_path, monkeypatch):
    import denpex.store

    good = denpex.store.MIGRATIONS
    bad = (*good, ("breaks", ("CREATE TABLE half (x)", "CREATE TABLE half (x)")))
    monkeypatch.setattr(denpex.store, "MIGRATIONS", bad)
    with pytest.raises(StoreError, match="half"):
        Store(tmp_path / "denpex.db")
    monkeypatch.setattr(denpex.store, "MIGRATIONS", good)
    made = Store(tmp_path / "denpex.db")
    assert not made._db["half"].exists()
    made.close()


def test_a_reader_stops_at_its_limits(store):
    for number in range(30):
        store.save(verdict(job(str(number))), 1.0)
    assert len(rows(store, limit=10)) == 10
    with pytest.raises(StoreError, match="too long"):
        rows(store, limit_bytes=1000)
    slow = "(WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n) > 0"
    with pytest.raises(StoreError, match="interrupted"):
        rows(store, slow, seconds=0.05)


def test_a_database_path_with_signs_that_addresses_use_is_read(tmp_path):
    directory = tmp_path / "a?b#c%20d"
    made = Store(directory / "denpex.db")
    made.save(verdict(category=Category.UNKNOWN), 1.0)
    assert rows(made)[0]["category"] == "unknown"
    made.close()


def fault(job_id, ended, uuid="GPU-a", stream=Source.KERNEL, node="n3"):
    place = Place("0", 2, node, GpuRef(uuid, "0000:3b:00.0", 1), "")
    seen = Evidence("e1", Role.ORIGIN, "gpu-ecc-uncorrectable", 2, node, str(stream), None, "Xid 48", "", 0)
    return verdict(
        job(job_id, start=ended - 50, end=ended), failure_class="gpu-ecc-uncorrectable", category=Category.HARDWARE,
        origin=place, evidence=(seen,),
    )  # fmt: skip


def test_faults_are_the_last_of_each_gpu_that_an_instrument_told_of(store):
    store.save(fault("1", 1000.0), 1.0)
    store.save(fault("2", 2000.0), 1.0)
    store.save(fault("3", 2100.0, "GPU-b"), 1.0)
    store.save(fault("4", 2200.0, "GPU-c", Source.TASK), 1.0)
    store.save(fault("5", 2300.0, "GPU-d", Source.HISTORY), 1.0)
    store.save(fault("6", 2400.0, "GPU-e", node="n9"), 1.0)
    store.save(fault("7", 9000.0, "GPU-f"), 1.0)
    found = Reader(store.path).faults("lab", ["n1", "n3"] * 400, 500.0, 5000.0)
    assert [(past.job_id, past.gpu, past.ended) for past in found] == [("2", "GPU-a", 2000.0), ("3", "GPU-b", 2100.0)]
    assert Reader(store.path).faults("other", ["n3"], 0.0, 5000.0) == ()
    assert Reader(store.path).faults("lab", [], 0.0, 5000.0) == ()
