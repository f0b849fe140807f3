"""Decisions of the dispatcher."""
