"""Payloads that Temporal stores but cannot read: AES-256-GCM, with the key's name beside each payload.

The first key encrypts, every key decrypts, so that a key is changed by adding a new one in front. Search
attributes are never encrypted: no personal data belongs there.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec
from typing_extensions import override

from shared.contract.errors import MisconfiguredError

ENCODING = b"binary/encrypted"
_KEY_NAME = "encryption-key-id"
_NONCE_BYTES = 12
_KEY_BYTES = 32


class SecretPayloads(PayloadCodec):
    """Encrypts every payload on its way out of the process, and decrypts what comes in."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        if not keys:
            raise MisconfiguredError("payload encryption needs at least one key")
        self._ciphers = {name: AESGCM(_decoded(name, key)) for name, key in keys.items()}
        self._active = next(iter(keys))

    @override
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypted(payload) for payload in payloads]

    @override
    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        name = self._active.encode()
        secret = self._ciphers[self._active].encrypt(nonce, payload.SerializeToString(), name)
        return Payload(metadata={"encoding": ENCODING, _KEY_NAME: name}, data=nonce + secret)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        name = payload.metadata[_KEY_NAME]
        cipher = self._ciphers.get(name.decode())
        if cipher is None:
            raise MisconfiguredError(f"a payload is encrypted with the key {name.decode()!r}, which is not configured")
        try:
            plain = cipher.decrypt(payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:], name)
        except InvalidTag:
            raise MisconfiguredError(f"the key {name.decode()!r} does not open its payload") from None
        return Payload.FromString(plain)


def _decoded(name: str, key: str) -> bytes:
    try:
        decoded = base64.b64decode(key, validate=True)
    except binascii.Error:
        decoded = b""
    if len(decoded) != _KEY_BYTES:
        raise MisconfiguredError(f"payload key {name!r} must be {_KEY_BYTES} bytes in base64")
    return decoded
