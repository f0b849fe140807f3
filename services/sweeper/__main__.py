"""Start the sweeper."""

from __future__ import annotations

from services.sweeper.app import main

main()
