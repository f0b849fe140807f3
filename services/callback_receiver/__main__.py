"""Start the callback receiver."""

from __future__ import annotations

from services.callback_receiver.app import main

main()
