"""The network between agents and receivers: loses, doubles, delays and reorders callbacks, before and after their effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shared.runtime.http import HttpServer

_LOST = 503
_FATES = (
    ("straight",) * 60 + ("lost",) * 8 + ("answer_lost",) * 8 + ("doubled",) * 10 + ("late",) * 6 + ("slow",) * 6
    + ("cut_off",) * 2
)  # fmt: skip


class Postman:
    """Stands where agents think that the receiver is. `faithful` stops the mischief."""

    def __init__(self, seed: int, receivers: list[str]) -> None:
        self._chance = random.Random(f"{seed}-postman")
        self._receivers = receivers
        self._client = httpx.AsyncClient(timeout=3, trust_env=False)
        self._cut_off: set[str] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._server = HttpServer(
            Starlette(routes=[Route("/callbacks/v1/attempts/{attempt}/{verb}", self._take, methods=["POST"])]),
            "127.0.0.1", 0,
        )  # fmt: skip
        self.faithful = False
        self.faults: list[str] = []
        self.fates: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/callbacks/v1"

    async def open(self) -> None:
        await self._server.open()

    async def close(self) -> None:
        for errand in self._errands:
            errand.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self._server.close()
        await self._client.aclose()

    async def _take(self, request: Request) -> Response:
        body, chance = await request.body(), self._chance
        attempt = request.path_params["attempt"]
        fate = "straight" if self.faithful else "lost" if attempt in self._cut_off else chance.choice(_FATES)
        self.fates[fate] = self.fates.get(fate, 0) + 1
        match fate:
            case "cut_off":
                # Nothing of this attempt is ever heard again: only its result row speaks for it.
                self._cut_off.add(attempt)
            case "answer_lost":
                await self._forward(request, body)
            case "late":
                self._send_out(self._much_later(request, body, chance.uniform(2, 15)))
            case "slow":
                await asyncio.sleep(chance.uniform(0.1, 1.5))
                return await self._forward(request, body)
            case "doubled":
                answers = await asyncio.gather(*(self._forward(request, body) for _ in range(chance.randint(2, 5))))
                self._compare(request, answers)
                return answers[0]
            case "straight":
                return await self._forward(request, body)
        return Response(status_code=_LOST)

    def _compare(self, request: Request, answers: list[Response]) -> None:
        said = {answer.body for answer in answers if answer.status_code == 200}
        if request.path_params["verb"] != "heartbeat" and len(said) > 1:
            self.faults.append(f"one callback had {len(said)} answers: {request.url.path}: {said}")

    def _send_out(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _much_later(self, request: Request, body: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._forward(request, body)

    async def _forward(self, request: Request, body: bytes) -> Response:
        """To one receiver, or to the other when the first does not answer."""
        headers = {name: value for name, value in request.headers.items() if name.startswith(("x-", "content-type"))}
        for base in self._chance.sample(self._receivers, len(self._receivers)):
            try:
                answer = await self._client.post(base + request.url.path, content=body, headers=headers)
            except httpx.TransportError:
                continue
            if answer.status_code >= 500 and answer.status_code != _LOST:
                self.faults.append(f"{request.url.path} was answered {answer.status_code}: {answer.text}")
            return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
        return Response(status_code=_LOST)
