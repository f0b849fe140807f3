"""Start the dispatcher."""

from __future__ import annotations

from services.dispatcher.app import main

main()
