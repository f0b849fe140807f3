"""Start an agent inside a Databricks run: secrets into the environment, then the wheel's entry point.

A run cannot be given an environment with secrets in it, so they are read from a secret scope, whose
keys are the names that the agent wants.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import os
import sys

ENTRY_POINT = "services.document_agent.__main__:main"


def main(argv: list[str]) -> None:
    """Run the agent with what is left of the arguments; its exit code is the run's."""
    reader = argparse.ArgumentParser(allow_abbrev=False)
    reader.add_argument("--secrets", metavar="SCOPE")
    reader.add_argument("--set", metavar="NAME=VALUE", action="append", default=[])
    own, rest = reader.parse_known_args(argv)
    for setting in own.set:
        name, _, value = setting.partition("=")
        os.environ[name] = value
    if own.secrets:
        os.environ.update(read_secrets(own.secrets))
    module, _, function = ENTRY_POINT.partition(":")
    sys.argv = [module, *rest]
    getattr(importlib.import_module(module), function)()


def read_secrets(scope: str) -> dict[str, str]:
    """Every secret of the scope whose key is a name of the environment."""
    from databricks.sdk import WorkspaceClient

    secrets = WorkspaceClient().secrets
    names = [each.key for each in secrets.list_secrets(scope) if each.key and each.key.isupper()]
    return {name: base64.b64decode(secrets.get_secret(scope, name).value or "").decode() for name in names}


if __name__ == "__main__":
    main(sys.argv[1:])
