"""Decisions of the console that need nothing but their arguments."""
