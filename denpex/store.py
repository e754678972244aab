"""The verdict database: SQLite, written by the worker only; everyone else asks the worker.

Writing and migrating go through sqlite-utils, whose import costs a quarter of a second; reading uses sqlite3 alone.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denpex.errors import StoreError
from denpex.model import Job, PastFault, Source, Verdict
from denpex.store_migrations import MIGRATIONS

if TYPE_CHECKING:
    import sqlite_utils

_BUSY_S = 5.0
# SQLite takes a bounded number of values (32,766 since 3.32, 999 before).
_MOST_NODES = 500


class Store:
    """The database for its one writer. Raises StoreError where the file cannot be opened or is not one."""

    def __init__(self, path: Path) -> None:
        import sqlite_utils

        self.path = path
        with _sentences(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # The file must never exist with another mode, not for a moment; SQLite gives its own files the same.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
            try:
                connection.execute("PRAGMA foreign_keys = ON")
                self._db: sqlite_utils.Database = sqlite_utils.Database(connection)
                self._db.enable_wal()
                self._migrate()
            except BaseException:
                connection.close()
                raise

    def _migrate(self) -> None:
        connection = self._db.conn
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied REAL)")
        done = {row[0] for row in connection.execute("SELECT name FROM migrations")}
        unknown = done - {name for name, _ in MIGRATIONS}
        if unknown:
            raise StoreError(
                f"the verdict database {self.path} was written by a later Denpex (migration {min(unknown)!r});"
                " run that one, or move the file away"
            )
        for name, statements in MIGRATIONS:
            if name not in done:
                with self._transaction():
                    for statement in statements:
                        connection.execute(statement)
                    connection.execute("INSERT INTO migrations VALUES (?, ?)", (name, time.time()))

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def waiting(self, job: Job, awaited: Sequence[str], now: float) -> None:
        """Note that a run is being diagnosed and which nodes' bundles are awaited (seconds since 1970)."""
        with _sentences(self.path), self._transaction():
            run = self._run(job)
            since = self._db.conn.execute("SELECT waiting_since FROM runs WHERE id = ?", (run,)).fetchone()[0]
            values = {"awaited": json.dumps(list(awaited)), "waiting_since": now if since is None else since}
            self._db.table("runs").update(run, values)

    def save(self, verdict: Verdict, now: float) -> int:
        """Store a verdict; return its revision. The same verdict again changes nothing; another one is a revision."""
        with _sentences(self.path), self._transaction():
            run = self._run(verdict.job)
            document = json.loads(json.dumps({**verdict.to_json(), "revision": 0}))
            last = self._db.conn.execute(
                "SELECT revision, document FROM verdicts WHERE run = ? ORDER BY revision DESC LIMIT 1", (run,)
            ).fetchone()
            revision: int = last[0] if last else 0
            if last is None or {**json.loads(last[1]), "revision": 0} != document:
                revision += 1
                place = verdict.origin
                self._db.table("verdicts").insert(
                    {
                        "run": run,
                        "revision": revision,
                        "category": str(verdict.category),
                        "failure_class": verdict.failure_class,
                        "confidence": verdict.confidence,
                        "scope": str(verdict.scope),
                        "rank": place.rank if place else None,
                        "node": place.node if place else None,
                        "title": verdict.title,
                        "created": now,
                        "document": json.dumps({**document, "revision": revision}),
                    }
                )
            self._db.table("runs").update(run, {"awaited": None, "waiting_since": None})
            return revision

    def known(self, cluster: str, job_id: str, start: int) -> bool:
        """Tell whether a run has a verdict."""
        with _sentences(self.path):
            row = self._db.conn.execute(
                "SELECT 1 FROM runs JOIN verdicts ON run = id WHERE cluster = ? AND job_id = ? AND start = ?",
                (cluster, job_id, start),
            ).fetchone()
        return row is not None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._db.conn
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # SQLite has already rolled back where the disk is full.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _run(self, job: Job) -> int:
        """Insert or update the run's row; return its id. What is known of a run is never forgotten again."""
        key = {"cluster": job.cluster or "", "job_id": job.job_id or "", "start": int(job.start or 0)}
        values = {
            "restart": job.restart,
            "array_job": job.array_job,
            "array_task": job.array_task,
            "het_job": job.het_job,
            "het_offset": job.het_offset,
            "name": job.name,
            "user": job.user,
            "uid": job.uid,
            "account": job.account,
            "partition": job.partition,
            "state": job.state,
            "exit": job.exit,
            "derived": job.derived,
            "submit": job.submit,
            "ended": job.end,
            "nodes": ",".join(job.nodes),
        }
        found = self._db.conn.execute(
            "SELECT id FROM runs WHERE cluster = ? AND job_id = ? AND start = ?", tuple(key.values())
        ).fetchone()
        if found is None:
            return int(self._db.table("runs").insert({**key, **values}).last_pk or 0)
        said = {name: value for name, value in values.items() if value not in (None, "")}
        if said:
            self._db.table("runs").update(found[0], said)
        return int(found[0])


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say into sentences."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"the verdict database {path} cannot be used: {error}") from error


_COLUMNS = (
    "runs.id, runs.cluster, runs.job_id, runs.start, runs.restart, runs.array_job, runs.array_task, runs.het_job,"
    " runs.het_offset, runs.name, runs.user, runs.uid, runs.account, runs.partition, runs.state, runs.exit,"
    " runs.derived, runs.submit, runs.ended, runs.nodes, runs.awaited, runs.waiting_since,"
    " v.revision, v.category, v.failure_class, v.confidence, v.scope, v.rank, v.node, v.title, v.created"
)
_LATEST = (
    " FROM runs LEFT JOIN verdicts AS v ON v.run = runs.id"
    " AND v.revision = (SELECT max(revision) FROM verdicts WHERE run = runs.id)"
)


class Reader:
    """The database for reading: one short connection for each question."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(
        self,
        where: str,
        values: Sequence[Any],
        *,
        documents: bool,
        limit: int = 100_000,
        limit_bytes: int = 1 << 30,
        seconds: float = 60.0,
    ) -> list[dict[str, Any]]:
        """Return runs with their latest verdict as flat rows; ``where`` is SQL over runs and v, with ? for values.

        ``documents``: each row's ``document`` is the verdict's JSON document, None where there is none yet. Raises
        StoreError beyond ``limit_bytes`` of documents, or where it takes more than ``seconds``.
        """
        columns = _COLUMNS + (", v.document" if documents else "")
        query = f"SELECT {columns}{_LATEST} WHERE {where} ORDER BY runs.start, runs.id LIMIT {limit}"
        until = time.monotonic() + seconds
        rows = []
        with _sentences(self.path):
            address = f"{self.path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=min(_BUSY_S, seconds))) as connection:
                connection.row_factory = sqlite3.Row
                connection.set_progress_handler(lambda: int(time.monotonic() > until), 10_000)
                for row in connection.execute(query, list(values)):
                    rows.append(dict(row))
                    limit_bytes -= len(row["document"] or "") if documents else 0
                    if limit_bytes < 0:
                        raise StoreError("the answer is too long; ask for fewer jobs")
        for found in rows:
            found["awaited"] = json.loads(found["awaited"]) if found["awaited"] else []
            if found.get("document"):
                found["document"] = json.loads(found["document"])
        return rows

    def faults(self, cluster: str, nodes: Sequence[str], since: float, until: float) -> tuple[PastFault, ...]:
        """Return the last hardware fault of each GPU of these nodes, in runs that ended between two moments.

        Only what the kernel or NVML told of in that run counts: a verdict that rests on words, or on earlier faults
        in its turn, would speak for itself.
        """
        found: dict[str, PastFault] = {}
        for first in range(0, len(nodes), _MOST_NODES):
            some = nodes[first : first + _MOST_NODES]
            marks = ", ".join("?" * len(some))
            where = (
                f"v.category = 'hardware' AND v.node IN ({marks}) AND runs.cluster = ? AND runs.ended BETWEEN ? AND ?"
            )
            for row in self.find(where, (*some, cluster, since, until), documents=True):
                gpu = ((row["document"]["origin"] or {}).get("gpu") or {}).get("uuid")
                told = any(
                    e["stream"] in (Source.KERNEL, Source.NVML) and e["class"] == row["failure_class"]
                    for e in row["document"]["evidence"]
                )
                if gpu and told:
                    found[gpu] = PastFault(row["failure_class"], row["node"], gpu, row["job_id"], row["ended"])
        return tuple(found.values())
