"""The browsers outside."""
