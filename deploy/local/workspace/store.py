"""What the double remembers across restarts: jobs, runs, idempotency tokens, files, logins, extra usage rows.

One SQLite file, written by one thread. A write is on disk's way before the call that made it is answered, so
a killed double comes back knowing every run it ever promised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from deploy.local.workspace.operation import JsonObject
from deploy.local.workspace.run_record import Run

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    job_id INTEGER PRIMARY KEY, created_time INTEGER NOT NULL, creator TEXT NOT NULL, name TEXT NOT NULL,
    runs INTEGER NOT NULL DEFAULT 0, settings TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL UNIQUE, task_run_id INTEGER NOT NULL UNIQUE,
    job_id INTEGER NOT NULL, run_type TEXT NOT NULL, start_time INTEGER NOT NULL, end_time INTEGER,
    active INTEGER NOT NULL, deleted INTEGER NOT NULL DEFAULT 0, document TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS runs_active ON runs (active, seq) WHERE active = 1;
CREATE INDEX IF NOT EXISTS runs_of_job ON runs (job_id, seq);
CREATE INDEX IF NOT EXISTS runs_ended ON runs (end_time) WHERE active = 0;
CREATE TABLE IF NOT EXISTS idempotency_tokens (token TEXT PRIMARY KEY, run_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS logins (
    principal TEXT PRIMARY KEY, token TEXT NOT NULL, issued_at REAL NOT NULL, ends_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS volume_entries (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, blob TEXT, size INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS volume_children ON volume_entries (parent, name);
CREATE TABLE IF NOT EXISTS usage_rows (record_id TEXT PRIMARY KEY, document TEXT NOT NULL);
"""


class Store:
    """The double's memory. Every method is one short transaction."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        # Process death loses nothing with NORMAL; only a power cut may lose the last moments.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All writes inside happen, or none."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Every row of a query."""
        return self._db.execute(statement, values).fetchall()

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """The first row of a query or None."""
        found: tuple[Any, ...] | None = self._db.execute(statement, values).fetchone()
        return found

    def execute(self, statement: str, *values: object) -> int:
        """Run one statement; how many rows it changed."""
        return self._db.execute(statement, values).rowcount

    # -- jobs

    def add_job(self, job_id: int, created_time: int, creator: str, settings: JsonObject) -> None:
        """Remember a new job."""
        self.execute(
            "INSERT INTO jobs (job_id, created_time, creator, name, settings) VALUES (?, ?, ?, ?, ?)",
            job_id, created_time, creator, str(settings.get("name", "Untitled")), orjson.dumps(settings).decode(),
        )  # fmt: skip

    def save_job(self, job_id: int, settings: JsonObject) -> None:
        """Replace a job's settings."""
        name = str(settings.get("name", "Untitled"))
        document = orjson.dumps(settings).decode()
        self.execute("UPDATE jobs SET name = ?, settings = ? WHERE job_id = ?", name, document, job_id)

    def job(self, job_id: int) -> JsonObject | None:
        """A job as the API shows it."""
        row = self.row("SELECT job_id, created_time, creator, settings FROM jobs WHERE job_id = ?", job_id)
        return None if row is None else _job(row)

    def jobs(self, name: str | None, limit: int, offset: int) -> list[JsonObject]:
        """Jobs, newest first."""
        found = self.rows(
            "SELECT job_id, created_time, creator, settings FROM jobs WHERE ? IS NULL OR lower(name) = lower(?)"
            " ORDER BY created_time DESC, rowid DESC LIMIT ? OFFSET ?",
            name, name, limit, offset,
        )  # fmt: skip
        return [_job(row) for row in found]

    # -- runs

    def add_run(self, run: Run) -> None:
        """Remember a new run and reserve its token for ever; numbers it inside its job."""
        with self.transaction() as db:
            counted = db.execute("UPDATE jobs SET runs = runs + 1 WHERE job_id = ? RETURNING runs", (run.job_id,))
            number = counted.fetchone()
            run.number_in_job = number[0] if number else 1
            if run.idempotency_token:
                db.execute("INSERT INTO idempotency_tokens VALUES (?, ?)", (run.idempotency_token, run.run_id))
            db.execute(
                "INSERT INTO runs (run_id, task_run_id, job_id, run_type, start_time, active, document)"
                " VALUES (?, ?, ?, ?, ?, 1, ?)",
                (run.run_id, run.task_run_id, run.job_id, run.run_type, run.start_time, run.to_json()),
            )

    def save_run(self, run: Run) -> None:
        """Write the state of a run."""
        self.execute(
            "UPDATE runs SET active = ?, end_time = ?, document = ? WHERE run_id = ?",
            not run.is_terminal, run.end_time, run.to_json(), run.run_id,
        )  # fmt: skip

    def run(self, run_id: int) -> Run | None:
        """The run with this id, be it the id of the run or of its task."""
        row = self.row(
            "SELECT document FROM runs WHERE (run_id = ? OR task_run_id = ?) AND deleted = 0", run_id, run_id
        )
        return None if row is None else Run.from_json(row[0])

    def run_of_token(self, token: str) -> int | None:
        """The run id that a token stands for, also when that run was deleted since."""
        row = self.row("SELECT run_id FROM idempotency_tokens WHERE token = ?", token)
        return None if row is None else int(row[0])

    def runs(self, where: str, values: tuple[object, ...], limit: int, offset: int) -> list[Run]:
        """Runs, newest first, that meet a condition over the columns of the table."""
        statement = f"SELECT document FROM runs WHERE deleted = 0 AND {where} ORDER BY seq DESC LIMIT ? OFFSET ?"
        return [Run.from_json(row[0]) for row in self.rows(statement, *values, limit, offset)]

    def active_runs(self) -> list[Run]:
        """Runs without an end, oldest first."""
        return [Run.from_json(row[0]) for row in self.rows("SELECT document FROM runs WHERE active = 1 ORDER BY seq")]

    def ended_runs(self, before_ms: int) -> list[Run]:
        """Runs that ended before an instant, in the order of their end."""
        found = self.rows(
            "SELECT document FROM runs WHERE active = 0 AND end_time <= ? ORDER BY end_time, seq", before_ms
        )
        return [Run.from_json(row[0]) for row in found]

    def delete_run(self, run_id: int) -> None:
        """Show a run no more; its token stays reserved, and what it consumed stays on the bill."""
        self.execute("UPDATE runs SET deleted = 1 WHERE run_id = ?", run_id)


def _job(row: tuple[Any, ...]) -> JsonObject:
    job_id, created_time, creator, settings = row
    return {
        "job_id": job_id,
        "created_time": created_time,
        "creator_user_name": creator,
        "run_as_user_name": creator,
        "settings": orjson.loads(settings),
    }
