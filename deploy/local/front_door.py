"""The one address of the local stack: Caddy's configuration, generated.

Bodies stream both ways and nothing is buffered; events are flushed as they come. While a service
is starting or restarting, requests wait for it a moment and then get a friendly answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deploy.local.folder import LOOPBACK

DIAL_PATIENCE = "3s"
"""How long a request waits for a service that does not accept connections yet."""

STARTING_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="refresh" content="2"><title>Lockkeeper is starting</title>
<body style="font:16px/1.5 system-ui;max-width:36rem;margin:20vh auto;padding:0 1rem">
<h1 style="font-size:1.4rem">Lockkeeper is starting</h1>
<p>This part of it does not answer yet. The page tries again by itself every two seconds.</p>
<p><small>If it stays, <code>./dev logs</code> says why.</small></p></body></html>"""

STARTING_PROBLEM = json.dumps(
    {
        "type": "about:blank",
        "title": "Not ready",
        "status": 503,
        "detail": "This part of Lockkeeper is starting or restarting; try again in a moment.",
    }
)


def configuration(port: int, upstreams: Mapping[str, int]) -> dict[str, Any]:
    """Caddy's JSON for these upstreams (`console`, `notifier`, `callback_receiver`)."""
    routes = [
        _route(["/events"], upstreams["notifier"], {"flush_interval": -1}),
        _route(["/callbacks/v1/*"], upstreams["callback_receiver"], {}),
    ]
    if "underwriting_api" in upstreams:
        paths = ["/underwriting", "/underwriting/*", "/api/v1/underwriting", "/api/v1/underwriting/*"]
        routes.append(_route(paths, upstreams["underwriting_api"], {}))
    routes.append(_route(None, upstreams["console"], {}))
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "WARN"}}},
        "apps": {
            "http": {
                "grace_period": "3s",
                "servers": {
                    "front_door": {
                        "listen": [f"{LOOPBACK}:{port}"],
                        "protocols": ["h1"],
                        "automatic_https": {"disable": True},
                        "read_header_timeout": "10s",
                        "idle_timeout": "5m",
                        "max_header_bytes": 65536,
                        "routes": routes,
                        "errors": {"routes": _not_ready()},
                    }
                },
            }
        },
    }


def _route(paths: list[str] | None, upstream: int, extra: dict[str, Any]) -> dict[str, Any]:
    route: dict[str, Any] = {
        "handle": [
            {
                "handler": "reverse_proxy",
                "upstreams": [{"dial": f"{LOOPBACK}:{upstream}"}],
                # Tried again only while nothing of the request has been sent.
                "load_balancing": {"try_duration": DIAL_PATIENCE, "try_interval": "100ms"},
                "transport": {"protocol": "http", "dial_timeout": "2s", "keep_alive": {"idle_timeout": "4s"}},
                **extra,
            }
        ],
        "terminal": True,
    }
    if paths is not None:
        route["match"] = [{"path": paths}]
    return route


def _not_ready() -> list[dict[str, Any]]:
    gateway_error = {"expression": "{http.error.status_code} in [502, 503, 504]"}
    wants_page = {"header": {"Accept": ["*text/html*"]}}
    return [
        {"match": [gateway_error | wants_page], "handle": [_answer(STARTING_PAGE, "text/html; charset=utf-8")]},
        {"match": [gateway_error], "handle": [_answer(STARTING_PROBLEM, "application/problem+json")]},
    ]


def _answer(body: str, content_type: str) -> dict[str, Any]:
    return {
        "handler": "static_response",
        "status_code": 503,
        "headers": {"Content-Type": [content_type], "Retry-After": ["2"], "Cache-Control": ["no-store"]},
        "body": body,
    }
