"""Start the underwriting API."""

from __future__ import annotations

from services.underwriting_api.app import main

main()
