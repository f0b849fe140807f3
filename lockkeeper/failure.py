"""The one way in which a command fails."""

from __future__ import annotations


class CommandError(Exception):
    """Something that the person must know, in one line; `status` becomes the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
