"""Decisions of the notifier that need nothing but their arguments."""
