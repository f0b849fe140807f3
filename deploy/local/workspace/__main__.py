"""Entry point: ``python -m deploy.local.workspace``."""

from __future__ import annotations

from deploy.local.workspace.app import serve

if __name__ == "__main__":
    serve()
