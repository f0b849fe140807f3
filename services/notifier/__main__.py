"""`python -m services.notifier`."""

from services.notifier.app import main

main()
