"""The API's reference for people, rendered from its OpenAPI document; no script, nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response

from services.console.routes.given import API
from services.console.routes.pages import Templates, release_of, static_files

_METHODS = ("get", "post", "put", "patch", "delete")


class ReferenceRoutes:
    """`/docs`."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._templates = Templates(release_of(static_files()))

    def router(self) -> APIRouter:
        """The one path."""
        router = APIRouter(prefix=API, include_in_schema=False, default_response_class=HTMLResponse)
        router.add_api_route("/docs", self.docs, methods=["GET", "HEAD"])
        return router

    async def docs(self) -> Response:
        """Every call with its parameters, body and answers."""
        document = self._app.openapi()
        groups = _groups(document)
        return self._templates.page(
            "reference.html", common=_taken_out(groups), groups=groups, schemas=_schemas(document)
        )


def _groups(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                operation = operations[method]
                groups.setdefault(operation.get("tags", ["other"])[0], []).append(_call(path, method, operation))
    return groups


def _taken_out(groups: dict[str, list[dict[str, Any]]]) -> list[dict[str, str]]:
    """The answers that every call may give; they are said once, and not with each."""
    calls = [call for group in groups.values() for call in group]
    common = [answer for answer in calls[0]["answers"] if all(answer in call["answers"] for call in calls)]
    for call in calls:
        call["answers"] = [answer for answer in call["answers"] if answer not in common]
    return common


def _call(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {})
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "description": operation.get("description", ""),
        "parameters": [
            {
                "name": each["name"],
                "where": each["in"],
                "is_required": each.get("required", False),
                "type": type_of(each["schema"]),
                "description": each.get("description", ""),
            }
            for each in operation.get("parameters", [])
        ],
        "bodies": [{"kind": kind, "type": type_of(content.get("schema", {}))} for kind, content in body.items()],
        "answers": [
            {
                "status": status,
                "description": answer.get("description", ""),
                "type": type_of(next(iter(answer.get("content", {"": {}}).values())).get("schema", {})),
            }
            for status, answer in operation["responses"].items()
        ],
    }


def _schemas(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": schema.get("description", ""),
            "fields": [
                {
                    "name": field,
                    "type": type_of(details),
                    "is_required": field in schema.get("required", []),
                    "description": details.get("description", ""),
                }
                for field, details in schema.get("properties", {}).items()
            ],
        }
        for name, schema in sorted(document.get("components", {}).get("schemas", {}).items())
    ]


def type_of(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    match schema:
        case {"$ref": str(reference)}:
            return reference.rpartition("/")[2]
        case {"anyOf": list(choices)}:
            return " or ".join(dict.fromkeys(type_of(each) for each in choices))
        case {"enum": list(values)}:
            return " or ".join(f"“{value}”" for value in values)
        case {"const": value}:
            return f"“{value}”"
        case {"type": "array"}:
            return f"list of {type_of(schema.get('items', {}))}"
        case {"type": str(kind), "format": str(form)}:
            return f"{kind} ({form})"
        case {"type": str(kind)}:
            return kind
        case _:
            return "any" if schema else ""
