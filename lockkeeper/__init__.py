"""The `lockkeeper` command: what an operator does from a terminal.

Everything about tasks, agents and costs goes through the HTTP API, so the command can do exactly
what the API allows. Only `migrate` and `doctor` talk to the database themselves.
"""
