"""The model over the OpenAI protocol: every call is limited in time, counted, traced, and its errors sorted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import time
from typing import TYPE_CHECKING, Any

from shared.agent_kit.settings import AgentSettings
from shared.agent_kit.spans import SpanRecord
from shared.agent_kit.traces import Trace
from shared.agent_kit.usage import CallUsage, UsageLedger, read_usage
from shared.agent_kit.workspace import bearer_token
from shared.contract.errors import RejectedError, TransientError
from shared.contract.text import clean_text

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_PREVIEW_CHARACTERS = 2_000
_REFUSALS = {
    400: ("model_refused_request", "the model endpoint refused the request"),
    401: ("model_access_denied", "the model endpoint refused the credentials"),
    403: ("model_access_denied", "the model endpoint refused the credentials"),
    404: ("model_not_found", "the model endpoint does not exist"),
    413: ("model_context_exceeded", "the request is too large for the model"),
    422: ("model_refused_request", "the model endpoint refused the request"),
}


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What the model said. `finish_reason` is `length` when it was cut; `usage` None when it was not counted."""

    text: str
    model: str
    finish_reason: str
    usage: CallUsage | None
    cleaned_characters: int = 0


class ModelClient:
    """Calls one model for one attempt; `usage` adds up what was spent, failed calls included when counted."""

    def __init__(self, settings: AgentSettings, trace: Trace, usage: UsageLedger) -> None:
        self._settings = settings
        self._trace = trace
        self._usage = usage
        self._client: AsyncOpenAI | None = None

    @property
    def name(self) -> str:
        """The model that calls go to unless another is named."""
        return self._settings.model

    async def complete(
        self, messages: list[dict[str, str]], *, step: str = "model call", model: str | None = None, **options: Any
    ) -> ModelAnswer:
        """One answer. Options go to the endpoint as they are (`response_format`, `max_tokens`, `temperature` …).

        Raises TransientError (`model_throttled`, `model_unavailable`) or RejectedError with the reason.
        """
        name = model or self._settings.model
        with self._trace.span(step, "CHAT_MODEL") as span:
            span.inputs = {"messages": [_preview(each) for each in messages]}
            span.attributes["mlflow.llm.model"] = name
            raw = await self._call(name, messages, options)
            answer = _read(raw, name)
            self._usage.add(answer.model, answer.usage)
            _describe(span, answer)
            return answer

    async def close(self) -> None:
        """Close the connections of this attempt."""
        if self._client is not None:
            await self._client.close()

    async def _call(self, name: str, messages: list[dict[str, str]], options: dict[str, Any]) -> dict[str, Any]:
        import openai

        try:
            async with asyncio.timeout(self._settings.model_seconds):
                client = await self._connected()
                body = {"model": name, "messages": messages, **options}
                return _as_object(await client.post("/chat/completions", cast_to=object, body=body))
        except TimeoutError as error:
            raise TransientError(
                f"the model did not answer within {self._settings.model_seconds:g} s", reason="model_unavailable"
            ) from error
        except openai.APIStatusError as error:
            raise sorted_status(error) from error
        except (openai.OpenAIError, ValueError) as error:
            raise TransientError(f"the model does not answer: {error}", reason="model_unavailable") from error

    async def _connected(self) -> AsyncOpenAI:
        if self._client is None:
            import openai

            key = self._settings.model_key.get_secret_value() or await asyncio.to_thread(bearer_token)
            limit = self._settings.model_seconds
            self._client = openai.AsyncOpenAI(
                api_key=key, base_url=self._settings.model_base_url, max_retries=0, timeout=limit,
                http_client=openai.DefaultAsyncHttpxClient(verify=_trust(), timeout=limit, trust_env=False),
            )  # fmt: skip
        return self._client


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    """Reading the certificate bundle takes 20 ms; once per process is enough."""
    return ssl.create_default_context()


def _as_object(raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004 - foreign bytes, not a caller's mistake
    return raw


def _read(raw: dict[str, Any], asked: str) -> ModelAnswer:
    """The answer in an OpenAI-protocol body, whatever of it is there: an empty text is the caller's to judge."""
    choices = raw.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    text, dropped = clean_text("".join(_parts(content)))
    usage = raw.get("usage")
    return ModelAnswer(
        text=text,
        model=str(raw.get("model") or asked),
        finish_reason=str(choice.get("finish_reason") or ""),
        usage=read_usage(usage if isinstance(usage, dict) else None),
        cleaned_characters=dropped,
    )


def _parts(content: Any) -> Iterable[str]:
    """Text of a content that is a string or a list of typed parts; reasoning parts are left out."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and part.get("type") == "text":
                yield str(part.get("text", ""))


def _describe(span: SpanRecord, answer: ModelAnswer) -> None:
    span.outputs = {"text": answer.text[:_PREVIEW_CHARACTERS], "finish_reason": answer.finish_reason}
    span.attributes["mlflow.llm.model"] = answer.model
    if answer.usage is None:
        return
    counted = answer.usage
    tokens = {
        "input_tokens": counted.prompt_tokens,
        "output_tokens": counted.output_tokens,
        "total_tokens": counted.prompt_tokens + counted.output_tokens,
    }
    if counted.cache_read_tokens:
        tokens["cache_read_input_tokens"] = counted.cache_read_tokens
    if counted.cache_write_tokens:
        tokens["cache_creation_input_tokens"] = counted.cache_write_tokens
    span.attributes["mlflow.chat.tokenUsage"] = tokens
    if counted.cost is not None:
        span.attributes["mlflow.llm.cost"] = {"total_cost": float(counted.cost)}


def _preview(message: dict[str, str]) -> dict[str, str]:
    content = message.get("content", "")
    if len(content) <= _PREVIEW_CHARACTERS:
        return message
    return {**message, "content": f"{content[:_PREVIEW_CHARACTERS]}… ({len(content)} characters)"}


def sorted_status(error: APIStatusError) -> RejectedError | TransientError:
    """What an error status of a model endpoint means for its caller: try again, perhaps when, or never."""
    status = error.status_code
    if status == 429:
        wait = _retry_after(error.response.headers)
        return TransientError(
            "the model endpoint is over its rate limit", reason="model_throttled", retry_after_seconds=wait
        )
    if status in _REFUSALS:
        reason, said = _REFUSALS[status]
        detail = clean_text(str(error))[0]
        if status == 400 and ("context" in detail.lower() or "too long" in detail.lower()):
            reason, said = _REFUSALS[413]
        return RejectedError(f"{said}: {detail[:500]}", reason=reason)
    if status < 500 and status not in (408, 409, 425):
        return RejectedError(f"the model endpoint answered {status}", reason="model_refused_request")
    wait = _retry_after(error.response.headers)
    return TransientError(f"the model endpoint answered {status}", reason="model_unavailable", retry_after_seconds=wait)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until the endpoint wants to be asked again: milliseconds, seconds or a date; None when not said."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            return max(0.0, min(86_400.0, float(value) / unit))
        except ValueError:
            continue
    try:
        return max(0.0, min(86_400.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time()))
    except (KeyError, ValueError):
        return None
