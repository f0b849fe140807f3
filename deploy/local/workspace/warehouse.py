"""Executes a Databricks SQL query over the billing tables: sqlglot turns it into DuckDB's dialect.

Only queries run here. Named parameters become typed literals in the syntax tree, never text in the statement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import sqlglot
from sqlglot import exp

from deploy.local.workspace.billing import PRICE_COLUMNS, USAGE_COLUMNS
from deploy.local.workspace.operation import JsonObject

if TYPE_CHECKING:
    import duckdb

_TABLES = {("billing", "usage"): USAGE_COLUMNS, ("billing", "list_prices"): PRICE_COLUMNS}
# DuckDB's type names, by their first word, in Databricks' spelling.
_TYPE_NAMES = {
    "VARCHAR": "STRING", "INTEGER": "INT", "BIGINT": "LONG", "HUGEINT": "DECIMAL", "SMALLINT": "SHORT",
    "TINYINT": "BYTE", "DOUBLE": "DOUBLE", "FLOAT": "FLOAT", "BOOLEAN": "BOOLEAN", "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP", "DECIMAL": "DECIMAL", "STRUCT": "STRUCT", "MAP": "MAP", "BLOB": "BINARY",
}  # fmt: skip


class StatementError(Exception):
    """The statement cannot be run; carries Databricks' error code for it."""

    def __init__(self, error_code: str, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True, slots=True)
class Column:
    """Name and type of a result column."""

    name: str
    type_name: str
    type_text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A result: every cell a text or None, as in JSON_ARRAY format."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | None]]


@dataclass(frozen=True, slots=True)
class Query:
    """A statement ready for DuckDB, and the billing tables it reads."""

    text: str
    tables: frozenset[str]


def translated(statement: str, parameters: Sequence[Mapping[str, Any]]) -> Query:
    """Check and translate one Databricks query."""
    values = {str(one["name"]): one for one in parameters}
    try:
        tree = sqlglot.parse_one(statement, read="databricks")
    except sqlglot.errors.SqlglotError as error:
        raise StatementError("BAD_REQUEST", f"[PARSE_SYNTAX_ERROR] {error}") from error
    if not isinstance(tree, exp.Query):
        raise StatementError("BAD_REQUEST", "the workspace double runs queries only")
    local = {common.alias_or_name.lower() for common in tree.find_all(exp.CTE)}
    read = {name for table in tree.find_all(exp.Table) if (name := _resolve(table, local))}
    # In two passes: a rewritten call still holds its parameters.
    tree = tree.transform(_rewritten).transform(lambda node: _bound(node, values))
    return Query(tree.sql(dialect="duckdb"), frozenset(read))


def _resolve(table: exp.Table, local: set[str]) -> str | None:
    schema, name = str(table.db).lower(), str(table.name).lower()
    if not schema and name in local:
        return None
    if (schema, name) not in _TABLES or table.catalog.lower() != "system":
        wanted = ".".join(part for part in (table.catalog, table.db, table.name) if part)
        raise StatementError("NOT_FOUND", f"[TABLE_OR_VIEW_NOT_FOUND] The table or view `{wanted}` cannot be found.")
    # DuckDB keeps the catalogue name "system" for itself.
    table.set("catalog", None)
    return name


def _bound(node: exp.Expression, values: Mapping[str, Mapping[str, Any]]) -> exp.Expression:
    if isinstance(node, exp.Placeholder) and node.this:
        if node.this not in values:
            raise StatementError("BAD_REQUEST", f"[UNBOUND_SQL_PARAMETER] Found the unbound parameter: {node.this}.")
        return _literal(values[node.this])
    return node


def _rewritten(node: exp.Expression) -> exp.Expression:
    if isinstance(node, exp.Column) and node.args.get("catalog") is not None:
        node.set("catalog", None)
    if isinstance(node, exp.FromJson) and node.expression is not None:
        # from_json(text, 'array<string>'): DuckDB casts JSON to the wanted type instead.
        return exp.cast(exp.cast(node.this, "JSON", dialect="duckdb"), node.expression.name, dialect="databricks")
    return node


def _literal(parameter: Mapping[str, Any]) -> exp.Expression:
    value, kind = parameter.get("value"), str(parameter.get("type") or "STRING")
    if value is None:
        return exp.cast(exp.null(), kind, dialect="databricks")
    return exp.cast(exp.Literal.string(str(value)), kind, dialect="databricks")


class Warehouse:
    """Runs translated queries; the rows of the tables are asked for at every query."""

    def __init__(self, rows: Mapping[str, Callable[[], Iterable[JsonObject]]]) -> None:
        self._rows = rows

    def snapshot(self, query: Query) -> dict[str, list[JsonObject]]:
        """The rows the query will read. Called where the store may be read."""
        return {name: list(self._rows[name]()) for name in query.tables}

    def run(self, query: Query, tables: Mapping[str, Sequence[JsonObject]]) -> Table:
        """Execute a query. Blocks: called in a thread."""
        import duckdb

        with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("CREATE SCHEMA billing")
            try:
                for name, rows in tables.items():
                    _load(connection, name, rows)
                # From here on the statement of a caller runs: it sees the tables and nothing of this machine.
                connection.execute("SET enable_external_access = false")
                connection.execute(query.text)
                description, found = connection.description or [], connection.fetchall()
            except duckdb.Error as error:
                raise StatementError("BAD_REQUEST", str(error)) from error
        columns = [_column(str(one[0]), str(one[1])) for one in description]
        return Table(columns, [[_cell(value) for value in row] for row in found])


def _load(connection: duckdb.DuckDBPyConnection, name: str, rows: Sequence[JsonObject]) -> None:
    columns = _TABLES["billing", name]
    fields = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    connection.execute(f"CREATE TABLE billing.{name} ({fields})")
    if not rows:
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.json"
        path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
        kinds = ", ".join(f"'{column}': '{kind}'" for column, kind in columns.items())
        connection.execute(
            f"INSERT INTO billing.{name} SELECT {', '.join(columns)}"
            f" FROM read_json('{path}', format = 'newline_delimited', columns = {{{kinds}}})"
        )


def _column(name: str, duck_type: str) -> Column:
    word = duck_type.partition("(")[0].partition(" ")[0].upper()
    type_name = "ARRAY" if duck_type.endswith("[]") else _TYPE_NAMES.get(word, "STRING")
    text = {"LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT"}.get(type_name, type_name)
    return Column(name, type_name, duck_type.replace(" ", "") if type_name == "DECIMAL" else text)


def _cell(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
        case date():
            return value.isoformat()
        case dict() | list() | tuple():
            return orjson.dumps(value, default=str).decode()
        case _:
            return str(value)
