"""Start the underwriting worker."""

from __future__ import annotations

from services.underwriting_worker.app import main

main()
