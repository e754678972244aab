"""The verdict database's schema, as steps that are applied in order, each once; never changed, only added to."""

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "runs and verdicts",
        (
            """
            CREATE TABLE runs (
                id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, job_id TEXT NOT NULL, start INTEGER NOT NULL,
                restart INTEGER,
                array_job TEXT, array_task TEXT, het_job TEXT, het_offset TEXT, name TEXT, user TEXT, uid INTEGER,
                account TEXT, partition TEXT, state TEXT, exit TEXT, derived TEXT, submit REAL, ended REAL, nodes TEXT,
                awaited TEXT, waiting_since REAL,
                UNIQUE (cluster, job_id, start)
            )
            """,
            """
            CREATE TABLE verdicts (
                run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE, revision INTEGER NOT NULL,
                category TEXT NOT NULL, failure_class TEXT NOT NULL, confidence REAL NOT NULL, scope TEXT NOT NULL,
                rank INTEGER, node TEXT, title TEXT NOT NULL, created REAL NOT NULL, document TEXT NOT NULL,
                PRIMARY KEY (run, revision)
            ) WITHOUT ROWID
            """,
            "CREATE INDEX runs_by_job ON runs (job_id)",
            "CREATE INDEX runs_by_array ON runs (array_job)",
            "CREATE INDEX runs_by_het ON runs (het_job)",
            "CREATE INDEX runs_by_end ON runs (ended)",
            "CREATE INDEX runs_by_user ON runs (uid, ended)",
        ),
    ),
    (
        "runs by array task, and those that wait",
        (
            "DROP INDEX runs_by_array",
            "CREATE INDEX runs_by_array_task ON runs (array_job, array_task)",
            "CREATE INDEX runs_waiting ON runs (waiting_since) WHERE waiting_since IS NOT NULL",
        ),
    ),
    (
        "hardware faults by node",
        ("CREATE INDEX verdicts_of_hardware ON verdicts (node) WHERE category = 'hardware'",),
    ),
)
"""(name, SQL statements) of each step."""
