"""Start the cost attributor."""

from __future__ import annotations

from services.cost_attributor.app import main

main()
