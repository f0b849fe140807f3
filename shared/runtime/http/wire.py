"""The connection under an answer, for streams that one event feeds by the thousand.

ASGI's `send` takes a woken task per answer and frames every body anew. Whoever has the same bytes for many frames
them once (`chunk`) and writes them to each answer's wire, which stands in the scope: `wire_of(scope)`. The answer is
begun through ASGI as ever, without a length; from then on nobody but the wire writes to it.
"""

from __future__ import annotations

import asyncio
import socket

from starlette.types import Scope
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "lockkeeper.wire"
_HELD_BYTES = 2**17
_LAST_CHUNK = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """A part of an answer without a length, as it travels. Chunks may be joined."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Wire:
    """What stands between an answer and its client. A client that went away is written to without a word."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    def hold_little(self) -> None:
        """Let the kernel keep little of what the client has not taken: who is behind is known, and gets no old news."""
        if not self._transport.is_closing():
            end: socket.socket = self._transport.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _HELD_BYTES)

    def write(self, chunks: bytes) -> bool:
        """Hand these over; False, and nothing is, while the client has not taken enough of what came before."""
        if self._flow.write_paused:
            return False
        if not self._transport.is_closing():
            self._transport.write(chunks)
        return True

    async def drained(self) -> None:
        """Wait until it takes more, or the client is gone."""
        await self._flow.drain()

    def end(self) -> None:
        """Nothing comes after what was handed over."""
        if not self._transport.is_closing():
            self._transport.write(_LAST_CHUNK)
            self._transport.close()

    def abort(self) -> None:
        """Let go of a client that takes nothing."""
        self._transport.abort()


class WiredProtocol(HttpToolsProtocol):
    """uvicorn's, with the wire in the scope of every request."""

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"wire": Wire(self.transport, self.flow)}}


def wire_of(scope: Scope) -> Wire:
    """The connection that this request came by."""
    wire: Wire = scope["extensions"][_EXTENSION]["wire"]
    return wire
