"""MLflow's tracking server in one process: `python -m deploy.local.tracking HOME PORT`.

MLflow's own command imports everything twice, once for the command line and once in the server that it starts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from deploy.local.folder import LOOPBACK
from deploy.local.process import Command

_ARTIFACTS = "mlflow-artifacts:/"
"""Clients send artifacts to the server, which keeps them."""


def command(home: Path, port: int, environment: Mapping[str, str]) -> Command:
    """A server that keeps everything in `home`; it answers `/health` once it is ready."""
    home.mkdir(exist_ok=True)
    return Command([sys.executable, "-m", __name__, str(home), str(port)], environment, niceness=5)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    import uvicorn
    from mlflow.server import constants

    home, port = Path(sys.argv[1]), int(sys.argv[2])
    store = f"sqlite:///{home / 'mlflow.db'}"
    # The application reads where things are when it is imported.
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.REGISTRY_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: _ARTIFACTS,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: str(home / "artifacts"),
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        # Job execution would start eight more processes for features that nobody here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # Prices of models come from the package: nobody outside is asked, nor waited for where there is no way out.
        "MLFLOW_MODEL_CATALOG_URI": "",
    }
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(store, store, _ARTIFACTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.server.fastapi_app import app
    uvicorn.run(app, host=LOOPBACK, port=port, access_log=False)


if __name__ == "__main__":
    main()
