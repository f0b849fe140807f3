"""Model endpoints through the unchanged OpenAI client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.workspace.conftest import SETTINGS
from tests.support.workspace import WorkspaceDouble

if TYPE_CHECKING:
    from openai import OpenAI

MODEL = "rule-based-stand-in"
INVOICE = "INVOICE\nSeller: Northwind Ltd\nInvoice date: 15 March 2024\nTotal due £2,064.60"
PROMPT: list[Any] = [
    {"role": "system", "content": "You extract fields."},
    {"role": "user", "content": f"Read this.\n<document>\n{INVOICE}\n</document>"},
]


@pytest.fixture
def openai(double: WorkspaceDouble) -> Iterator[OpenAI]:
    """The unchanged client."""
    with _openai(double) as client:
        yield client


def _openai(double: WorkspaceDouble) -> OpenAI:
    from openai import OpenAI

    token = str(double.http.headers["Authorization"]).removeprefix("Bearer ")
    return OpenAI(base_url=f"{double.url}/serving-endpoints", api_key=token, max_retries=0, timeout=10)


def test_the_stand_in_reads_the_document_and_says_what_it_is(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(model=MODEL, messages=PROMPT)
    assert (answer.model, answer.system_fingerprint) == (MODEL, MODEL)
    content = json.loads(answer.choices[0].message.content or "")
    assert content["model_note"] == "rule-based stand-in, not a language model"
    assert content["document_type"] == "invoice"
    assert content["totals"] == [
        {"label": "Total due", "value": "2064.60", "currency": "GBP", "evidence": "Total due £2,064.60"}
    ]
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


def test_the_same_prompt_costs_the_same(openai: OpenAI) -> None:
    answers = [openai.chat.completions.create(model=MODEL, messages=PROMPT) for _ in range(2)]
    assert answers[0].usage == answers[1].usage
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_it_streams_the_same_answer_with_its_usage(openai: OpenAI) -> None:
    whole = openai.chat.completions.create(model=MODEL, messages=PROMPT)
    with openai.chat.completions.create(model=MODEL, messages=PROMPT, stream=True) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_a_closed_schema_is_filled_and_nothing_is_added(openai: OpenAI) -> None:
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["invoice_date", "iban"],
        "properties": {"invoice_date": {"type": "string", "format": "date"}, "iban": {"type": ["string", "null"]}},
    }
    answer = openai.chat.completions.create(
        model=MODEL,
        messages=PROMPT,
        response_format={"type": "json_schema", "json_schema": {"name": "fields", "schema": schema, "strict": True}},
    )
    assert json.loads(answer.choices[0].message.content or "") == {"invoice_date": "2024-03-15", "iban": None}


def test_an_endpoint_is_found_by_path_and_in_the_list(double: WorkspaceDouble) -> None:
    answer = double.http.post(f"/serving-endpoints/{MODEL}/invocations", json={"messages": PROMPT}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    names = [one["name"] for one in double.http.get("/api/2.0/serving-endpoints").json()["endpoints"]]
    assert names == [MODEL]


def test_an_unknown_model_and_a_prompt_without_messages_are_refused(openai: OpenAI, double: WorkspaceDouble) -> None:
    from openai import NotFoundError

    with pytest.raises(NotFoundError, match="does not exist"):
        openai.chat.completions.create(model="gpt-99", messages=PROMPT)
    assert double.http.post(f"/serving-endpoints/{MODEL}/invocations", json={}).status_code == 400


def test_model_faults(openai: OpenAI, double: WorkspaceDouble) -> None:
    from openai import InternalServerError, RateLimitError

    def ask() -> str:
        return openai.chat.completions.create(model=MODEL, messages=PROMPT).choices[0].message.content or ""

    double.fault("serving.answer", "empty", times=1)
    assert ask() == ""
    double.fault("serving.answer", "nonsense", times=1)
    with pytest.raises(json.JSONDecodeError):
        json.loads(ask())
    double.fault("serving.chat", "status", status=429, retry_after="7", times=1)
    with pytest.raises(RateLimitError) as throttled:
        ask()
    assert throttled.value.response.headers["retry-after"] == "7"
    double.fault("serving.chat", "status", status=500, times=1)
    with pytest.raises(InternalServerError):
        ask()
    assert json.loads(ask())["document_type"] == "invoice"


def test_a_real_endpoint_stands_behind_a_proxy_and_knobs_are_kept(double: WorkspaceDouble, tmp_path: Path) -> None:
    from openai import BadRequestError

    key = str(double.http.headers["Authorization"]).removeprefix("Bearer ")
    endpoints = {
        "real": {"kind": "proxy", "url": f"{double.url}/serving-endpoints", "model": MODEL, "api_key": key},
        "cached": {"cached_share": 0.5},
        "small": {"context_tokens": 5},
    }
    front = WorkspaceDouble(tmp_path, **{**SETTINGS, "warm_up_delay_seconds": 3600, "serving_endpoints": endpoints})
    try:
        with _openai(front) as client:
            answer = client.chat.completions.create(model="real", messages=PROMPT)
            assert json.loads(answer.choices[0].message.content or "")["document_type"] == "invoice"
            usage = client.chat.completions.create(model="cached", messages=PROMPT).usage
            assert usage is not None and usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens // 2
            double.fault("serving.chat", "status", status=429, retry_after="3", times=1)
            throttled = front.http.post("/serving-endpoints/real/invocations", json={"messages": PROMPT})
            assert (throttled.status_code, throttled.headers["retry-after"]) == (429, "3")
            with pytest.raises(BadRequestError, match="context"):
                client.chat.completions.create(model="small", messages=PROMPT)
    finally:
        front.stop()
