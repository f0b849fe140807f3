"""Composition root of the callback receiver."""

from __future__ import annotations

from services.callback_receiver.loops import DatabaseClock, GatherLoop, RecoveredLoop, Settler
from services.callback_receiver.routes import Callbacks, create_app
from services.callback_receiver.settings import CallbackReceiverSettings
from services.callback_receiver.storage import CallbackStorage
from shared.contract.channels import Channel
from shared.identity.jwks import SignedTokens
from shared.runtime.process import Process, Service, run


async def compose(process: Process, settings: CallbackReceiverSettings) -> Service:
    """Wire the endpoint to its rounds."""
    storage = CallbackStorage(process.database)
    settler = Settler(storage, process.notes, settings)
    settler.open()
    clock = DatabaseClock(storage, settings)
    tokens = None
    if settings.token_jwks_url:
        tokens = SignedTokens(settings.token_jwks_url, issuer=settings.token_issuer, audience=settings.token_audience)
    recovered = RecoveredLoop(storage, process.notes, settings)
    return Service(
        loops=(clock, recovered, GatherLoop(storage, process.notes, settings)),
        app=create_app(Callbacks(settler.settle, clock.now, settings, tokens)),
        wakes={Channel.RESULT_RECOVERED: (recovered,)},
    )


def main() -> None:
    """Run the callback receiver until it is told to stop."""
    run("callback_receiver", CallbackReceiverSettings, compose)
