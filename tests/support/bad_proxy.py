"""A TCP proxy that misbehaves as the network does: it falls silent, cuts, or lets bytes trickle."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

_PIECE_BYTES = 65_536


@dataclass(eq=False)
class _Link:
    """Two ends of one connection through the proxy."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    is_silent: bool = False
    pumps: list[asyncio.Task[None]] = field(default_factory=list)

    def close(self) -> None:
        for pump in self.pumps:
            pump.cancel()
        self.near.transport.abort()
        self.far.transport.abort()


class BadProxy:
    """Forwards to a port of this machine until it is told to do worse."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self.bytes_per_second: float | None = None
        self.streams: list[str] = []
        """The head of each request for an event stream."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        pumps = [pump for link in self._links for pump in link.pumps]
        self.cut()
        await asyncio.gather(*pumps, return_exceptions=True)

    def silence(self) -> None:
        """Not a byte passes any more on the connections that are open, and nobody is told; new ones work."""
        for link in self._links:
            link.is_silent = True

    def cut(self) -> None:
        """Reset every connection that is open."""
        for link in list(self._links):
            link.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        link = _Link(writer, far_writer)
        self._links.add(link)
        link.pumps = [
            asyncio.create_task(self._pump(link, reader, far_writer)),
            asyncio.create_task(self._pump(link, far_reader, writer)),
        ]
        await asyncio.wait(link.pumps, return_when=asyncio.FIRST_COMPLETED)
        if not link.is_silent:
            link.close()
            self._links.discard(link)

    async def _pump(self, link: _Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(_PIECE_BYTES):
                if link.is_silent:
                    continue
                if piece.startswith(b"GET /events"):
                    self.streams.append(piece.decode(errors="replace"))
                if sink is link.near and self.bytes_per_second is not None:
                    await asyncio.sleep(len(piece) / self.bytes_per_second)
                sink.write(piece)
                await sink.drain()
