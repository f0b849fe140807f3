"""A TCP proxy that can go silent without closing, as a failed NAT, pooler or failover does."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class TcpProxy:
    """Forwards to one address; `silence` swallows everything, `cut` closes what is open, `refuse` what comes."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = 0
        self.refusals = 0
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        self.cut()

    def lead_to(self, port: int) -> None:
        """From now on new connections go to this port; open ones stay where they are."""
        self._target = (self._target[0], port)

    def silence(self) -> None:
        """From now on nothing passes, and nothing is closed."""
        self._speaks.clear()

    def speak(self) -> None:
        """Let bytes pass again; those swallowed in between stay lost to nobody: they were only held."""
        self._speaks.set()

    def cut(self) -> None:
        """Close every open connection at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def refuse(self, connections: int, *, after: int = 0) -> None:
        """Let so many connections pass, then close so many as soon as they come; `refusals` says how many are left."""
        self._passing, self.refusals = after, connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._passing:
            self._passing -= 1
        elif self.refusals:
            self.refusals -= 1
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            pipe = asyncio.create_task(self._pipe(source, sink))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await self._speaks.wait()
                sink.write(data)
                await sink.drain()
        await self._speaks.wait()
        sink.close()
