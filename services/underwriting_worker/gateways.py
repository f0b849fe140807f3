"""The worker's calls to the outside: files about applicants, and the model. Errors are sorted here, once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import httpx
import openai

from services.underwriting_worker.settings import WorkerSettings
from shared.agent_kit.model import sorted_status
from shared.agent_kit.usage import CallUsage, read_usage
from shared.agent_kit.workspace import bearer_token
from shared.contract.errors import MissingError, RejectedError, TransientError
from shared.contract.text import clean_json
from shared.contract.underwriting_samples import BY_APPLICANT

Json = dict[str, Any]


class EvidenceSource(Protocol):
    """Where files about applicants come from; `name` is cited in the record."""

    name: str

    async def credit_file(self, applicant: str, inquiry: UUID) -> Json:
        """The credit file. The same inquiry asked twice is one inquiry. Raises MissingError or TransientError."""
        ...

    async def income_file(self, applicant: str, inquiry: UUID) -> Json:
        """The income file, likewise."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


class SampleSource:
    """The ten sample applicants; nobody else has a file here."""

    name = "sample files"

    async def credit_file(self, applicant: str, inquiry: UUID) -> Json:  # noqa: ARG002 - the protocol's
        """The sample's credit file."""
        return _known(None if applicant not in BY_APPLICANT else BY_APPLICANT[applicant].credit_file(), applicant)

    async def income_file(self, applicant: str, inquiry: UUID) -> Json:  # noqa: ARG002 - the protocol's
        """The sample's income file."""
        return _known(None if applicant not in BY_APPLICANT else BY_APPLICANT[applicant].income_file(), applicant)

    async def close(self) -> None:
        """Nothing is open."""


class HttpSource:
    """A service with `GET /credit/{applicant}` and `GET /income/{applicant}`; each inquiry carries its id."""

    def __init__(self, url: str, seconds: float) -> None:
        self.name = url
        self._client = httpx.AsyncClient(base_url=url, timeout=seconds, trust_env=False)

    async def credit_file(self, applicant: str, inquiry: UUID) -> Json:
        """The credit file."""
        return await self._get("credit", applicant, inquiry)

    async def income_file(self, applicant: str, inquiry: UUID) -> Json:
        """The income file."""
        return await self._get("income", applicant, inquiry)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _get(self, kind: str, applicant: str, inquiry: UUID) -> Json:
        try:
            answer = await self._client.get(f"/{kind}/{applicant}", headers={"Idempotency-Key": str(inquiry)})
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise TransientError(f"the {kind} service does not answer: {said}", reason="source_unavailable") from error
        if answer.status_code == 404:
            raise MissingError(f"the {kind} service has no file on this applicant", reason="no_file")
        if answer.status_code in (408, 425, 429) or answer.status_code >= 500:
            raise TransientError(
                f"the {kind} service answered {answer.status_code}", reason="source_unavailable",
                retry_after_seconds=_seconds(answer.headers.get("retry-after", "")),
            )  # fmt: skip
        if answer.status_code != 200:
            raise RejectedError(f"the {kind} service answered {answer.status_code}", reason="source_refused")
        try:
            body, _ = clean_json(answer.json())
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise RejectedError(f"the {kind} service answered no JSON object", reason="source_unreadable")
        return body


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said, as it came, with what it used."""

    message: Json
    model: str
    finish_reason: str
    usage: CallUsage | None


class ModelGateway:
    """The model over the OpenAI protocol, with function calls."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._client: openai.AsyncOpenAI | None = None

    async def ask(self, model: str, messages: list[Json], tools: list[Json]) -> Answer:
        """One answer. Raises TransientError with the provider's delay, or RejectedError with the reason."""
        try:
            async with asyncio.timeout(self._settings.model_seconds):
                client = await self._connected()
                body: Json = {"model": model, "messages": messages, "tools": tools, "temperature": 0}
                raw = await client.post("/chat/completions", cast_to=object, body=body)
        except TimeoutError as error:
            message = f"the model did not answer within {self._settings.model_seconds:g} s"
            raise TransientError(message, reason="model_unavailable") from error
        except openai.APIStatusError as error:
            raise sorted_status(error) from error
        except (openai.OpenAIError, ValueError) as error:
            raise TransientError(f"the model does not answer: {error}", reason="model_unavailable") from error
        return _answer(raw, model)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> openai.AsyncOpenAI:
        key = self._settings.model_key.get_secret_value() or await asyncio.to_thread(bearer_token)
        if self._client is None:
            limit = self._settings.model_seconds
            self._client = openai.AsyncOpenAI(
                api_key=key, base_url=self._settings.model_base_url, max_retries=0, timeout=limit,
                http_client=openai.DefaultAsyncHttpxClient(timeout=limit, trust_env=False),
            )  # fmt: skip
        # Tokens of the workspace last an hour, this client as long as the process.
        self._client.api_key = key
        return self._client


def _answer(raw: object, asked: str) -> Answer:
    body, _ = clean_json(raw)
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    usage = body.get("usage") if isinstance(body, dict) else None
    return Answer(
        message=message if isinstance(message, dict) else {},
        model=str((body.get("model") if isinstance(body, dict) else None) or asked),
        finish_reason=str(choice.get("finish_reason") or ""),
        usage=read_usage(usage if isinstance(usage, dict) else None),
    )


def _known(found: Json | None, applicant: str) -> Json:
    if found is None:
        raise MissingError(f"there is no file on {applicant}", reason="no_file")
    return found


def _seconds(value: str) -> float | None:
    try:
        return max(0.0, min(3600.0, float(value)))
    except ValueError:
        return None
