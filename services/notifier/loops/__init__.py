"""When the notifier reads and what it hands on."""
