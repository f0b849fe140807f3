from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.manifests import CHART, render
from tests.support.kube import tool

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="session")
def helm(tools: Path) -> str:
    return tool("helm", tools)


@pytest.fixture(scope="session")
def promtool(tools: Path) -> str:
    return tool("promtool", tools)


@pytest.fixture(scope="session")
def rendered(helm: str) -> Render:
    """Objects of the chart with one of its values files and settings `path=value`."""

    @functools.cache
    def objects(values: str = "minimal", *settings: str) -> list[dict[str, Any]]:
        return render(helm, f"--values={CHART}/ci/{values}-values.yaml", *(f"--set={each}" for each in settings))

    return objects
