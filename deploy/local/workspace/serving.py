"""Doubles model serving: the OpenAI protocol under ``/serving-endpoints`` and the list of endpoints.

An endpoint is either a proxy to a real OpenAI-compatible address, or the rule-based stand-in, which reads the
document in the prompt by rules, invents nothing, and says in every answer that it is no language model.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from deploy.local.workspace.faults import MODEL_ANSWER, FaultBook
from deploy.local.workspace.operation import (
    ApiError,
    JsonObject,
    Operation,
    invalid_parameter,
    json_body,
    json_response,
    not_found,
)
from deploy.local.workspace.settings import ServingEndpoint

if TYPE_CHECKING:
    import httpx

FINGERPRINT = "rule-based-stand-in"
_CHARACTERS_A_TOKEN = 4
_STREAM_CHARACTERS = 200
_PROXY_SECONDS = 120.0
_NONSENSE = "Certainly! Here is the JSON you asked for: {document_type: 'invoice', amounts: [1,2,"


class ServingRoom:
    """Serving endpoints by name."""

    def __init__(self, *, endpoints: Mapping[str, ServingEndpoint], faults: FaultBook) -> None:
        self._endpoints = endpoints
        self._faults = faults
        self._client: httpx.AsyncClient | None = None

    def operations(self) -> Sequence[Operation]:
        """The calls of this room."""
        return [
            Operation("serving.chat", "POST", "/serving-endpoints/chat/completions", self.chat),
            Operation("serving.invoke", "POST", "/serving-endpoints/{name}/invocations", self.invoke),
            Operation("serving.list", "GET", "/api/2.0/serving-endpoints", self.list),
            Operation("serving.get", "GET", "/api/2.0/serving-endpoints/{name}", self.get),
        ]

    async def list(self, _: Request) -> Response:
        """Every endpoint."""
        return json_response({"endpoints": [_shown(name, one) for name, one in self._endpoints.items()]})

    async def get(self, request: Request) -> Response:
        """One endpoint."""
        name = request.path_params["name"]
        return json_response(_shown(name, self._endpoint(name)))

    async def chat(self, request: Request) -> Response:
        """Chat completion; the model's name in the body is the endpoint."""
        body = await json_body(request)
        return await self._answer(str(body.get("model", "")), body)

    async def invoke(self, request: Request) -> Response:
        """Chat completion of the endpoint in the path."""
        return await self._answer(request.path_params["name"], await json_body(request))

    async def _answer(self, name: str, body: JsonObject) -> Response:
        endpoint = self._endpoint(name)
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise invalid_parameter("messages is required")
        facts = {"name": name, "body": body}
        rule = self._faults.take(MODEL_ANSWER, {"nonsense", "empty"}, facts) if self._faults else None
        if rule is None and endpoint.kind == "proxy":
            return await self._forwarded(endpoint, body)
        prompt_tokens = _tokens(
            orjson.dumps([body["messages"], body.get("response_format"), body.get("tools")]).decode()
        )
        if prompt_tokens > endpoint.context_tokens:
            raise ApiError(
                400,
                "BAD_REQUEST",
                f"The prompt has {prompt_tokens} tokens; the context of this model is {endpoint.context_tokens}.",
            )
        if rule is None:
            message = await self._stand_in_message(endpoint, body, prompt_tokens)
        else:
            message = _message(_NONSENSE if rule.kind == "nonsense" else "")
        usage = _usage(prompt_tokens, _written(message), endpoint.cached_share)
        completion = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": FINGERPRINT,
        }
        if body.get("stream"):
            return StreamingResponse(_streamed(completion, message["content"], usage), media_type="text/event-stream")
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return json_response({**completion, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _stand_in_message(self, endpoint: ServingEndpoint, body: JsonObject, prompt_tokens: int) -> JsonObject:
        # The rules and their dictionaries are only loaded by a process that is asked something.
        from deploy.local.workspace.stand_in import underwriting
        from deploy.local.workspace.stand_in.answer import answer

        if endpoint.seconds_per_1000_tokens:
            await asyncio.sleep(endpoint.seconds_per_1000_tokens * prompt_tokens / 1000)
        if underwriting.is_asked(body.get("tools")):
            return underwriting.answer(body["messages"], body["tools"])
        return _message(await asyncio.to_thread(answer, body["messages"], body.get("response_format") or {}))

    async def _forwarded(self, endpoint: ServingEndpoint, body: JsonObject) -> Response:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_PROXY_SECONDS)
        headers = {"Content-Type": "application/json"}
        if key := endpoint.api_key.get_secret_value():
            headers["Authorization"] = f"Bearer {key}"
        content = orjson.dumps({**body, **({"model": endpoint.model} if endpoint.model else {})})
        url = f"{endpoint.url.rstrip('/')}/chat/completions"
        try:
            reply = await self._client.send(
                self._client.build_request("POST", url, content=content, headers=headers), stream=True
            )
        except httpx.HTTPError as error:
            raise ApiError(503, "TEMPORARILY_UNAVAILABLE", f"the real endpoint does not answer: {error}") from error
        kept = {name: reply.headers[name] for name in ("content-type", "retry-after") if name in reply.headers}
        return StreamingResponse(_relayed(reply), reply.status_code, kept)

    def _endpoint(self, name: str) -> ServingEndpoint:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise not_found(f"Endpoint with name '{name}' does not exist.")
        return endpoint


async def _relayed(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_bytes():
            yield chunk
    finally:
        await reply.aclose()


async def _streamed(completion: JsonObject, content: str, usage: JsonObject) -> AsyncIterator[bytes]:
    pieces = [content[at : at + _STREAM_CHARACTERS] for at in range(0, len(content), _STREAM_CHARACTERS)]
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    for delta in deltas:
        yield _event(completion, [{"index": 0, "delta": delta, "finish_reason": None}])
    yield _event(completion, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
    yield _event({**completion, "usage": usage}, [])
    yield b"data: [DONE]\n\n"


def _event(completion: JsonObject, choices: Sequence[JsonObject]) -> bytes:
    chunk = {**completion, "object": "chat.completion.chunk", "choices": choices}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _message(content: str) -> JsonObject:
    return {"role": "assistant", "content": content, "refusal": None}


def _written(message: JsonObject) -> str:
    """Everything of a message that counts as output tokens."""
    calls = message.get("tool_calls")
    return str(message["content"]) + (orjson.dumps(calls).decode() if calls else "")


def _usage(prompt_tokens: int, content: str, cached_share: float) -> JsonObject:
    completion_tokens = _tokens(content)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": int(prompt_tokens * cached_share)},
    }


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS_A_TOKEN)


def _shown(name: str, endpoint: ServingEndpoint) -> JsonObject:
    return {
        "name": name,
        "id": uuid.uuid5(uuid.NAMESPACE_DNS, name).hex,
        "state": {"ready": "READY", "config_update": "NOT_UPDATING"},
        "task": "llm/v1/chat",
        "description": "rule-based stand-in, not a language model" if endpoint.kind == "stand_in" else endpoint.url,
        "endpoint_type": "FOUNDATION_MODEL_API" if endpoint.kind == "stand_in" else "EXTERNAL_MODEL",
    }
