"""Documents: what is known of the files in the Volume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared.db.pool import Connection, Database
from shared.db.statements import load

_SQL = load("services.console.storage", "documents.sql")


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A file that lies in the Volume and is not known yet."""

    id: UUID
    name: str
    volume_path: str
    sha256: str
    bytes: int
    pages: int | None
    customer: str | None
    uploaded_by: str


class DocumentStorage:
    """Knows the documents."""

    def __init__(self, database: Database, *, duplicate_seconds: float) -> None:
        self._database = database
        self._duplicate_seconds = duplicate_seconds

    async def find_same_document(self, sha256: str, name: str, uploaded_by: str, customer: str | None) -> Any:
        """The same bytes under the same name by the same person a moment ago, or None."""
        async with self._database.connection() as connection:
            return await self._find_same(connection, sha256, name, uploaded_by, customer)

    async def add_document(self, document: NewDocument) -> tuple[Any, bool]:
        """The document's row and whether it is new: of two equal uploads at once, the second finds the first."""
        named = f"{document.uploaded_by}\n{document.sha256}\n{document.name}"

        async def add(connection: Connection) -> tuple[Any, bool]:
            await connection.execute(_SQL["hold_document_name"].sql, named)
            same = await self._find_same(
                connection, document.sha256, document.name, document.uploaded_by, document.customer
            )
            if same is not None:
                return same, False
            added = await connection.fetchrow(
                _SQL["add_document"].sql, document.id, document.name, document.volume_path, document.sha256,
                document.bytes, document.pages, document.customer, document.uploaded_by,
            )  # fmt: skip
            return added, True

        return await self._database.atomically(add)

    async def read_document(self, document_id: UUID) -> Any:
        """One document, or None."""
        return await self._database.fetchrow(_SQL["read_document"].sql, document_id)

    async def _find_same(
        self, connection: Connection, sha256: str, name: str, uploaded_by: str, customer: str | None
    ) -> Any:
        return await connection.fetchrow(
            _SQL["find_same_document"].sql, sha256, name, uploaded_by, self._duplicate_seconds, customer
        )
