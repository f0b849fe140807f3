"""Temporal as the services reach it: address and credentials from the standard TEMPORAL_* settings.

`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`, TLS files and the shared config file are read by
the SDK itself, so that a process here finds the same cluster as the `temporal` command beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from shared.contract.errors import RejectedError, TransientError
from shared.contract.underwriting import PURPOSE_ATTRIBUTE, STATE_ATTRIBUTE, TURN_ATTRIBUTE
from shared.vendors.payloads import SecretPayloads

SEARCH_ATTRIBUTES = {
    STATE_ATTRIBUTE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    PURPOSE_ATTRIBUTE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    TURN_ATTRIBUTE: IndexedValueType.INDEXED_VALUE_TYPE_INT,
}


def data_converter(keys: Mapping[str, str] | None = None) -> DataConverter:
    """Pydantic bodies; with keys, payloads and the texts of failures leave the process encrypted only."""
    if not keys:
        return pydantic_data_converter
    return dataclasses.replace(
        pydantic_data_converter,
        payload_codec=SecretPayloads(keys),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


async def connect(
    keys: Mapping[str, str] | None = None, *, lazy: bool = False, runtime: Runtime | None = None
) -> Client:
    """A client for the cluster that the environment names, or localhost:7233.

    With `lazy` the first call connects. Raises TransientError when nothing answers there.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**config, data_converter=data_converter(keys), lazy=lazy, runtime=runtime)
    except (RuntimeError, RPCError) as error:
        where = config.get("target_host")
        raise TransientError(f"Temporal does not answer at {where}: {error}", reason="temporal_unavailable") from error


async def ensure_search_attributes(client: Client) -> bool:
    """Let the namespace know our search attributes; whether any was missing.

    Raises TransientError, or RejectedError when we may not.
    """
    service = client.operator_service
    try:
        known = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known.custom_attributes}
        if missing:
            request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
            await service.add_search_attributes(request)
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return False
        if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise RejectedError(f"search attributes cannot be added here: {error.message}") from error
        raise TransientError(f"Temporal does not answer: {error.message}", reason="temporal_unavailable") from error
    return bool(missing)
