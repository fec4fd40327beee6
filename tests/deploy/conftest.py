"""One engine and one image for all tests here; without them a skip that says why."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.engine import Engine, engine_missing, running_engine
from tests.deploy.images import build_image, import_base, index_missing

_LENIENT = "SQUIDBOT_DEPLOY_LENIENT"
"""Set where nobody knows what the machine can do (continuous integration): what it lacks is a skip, not an error."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs minutes and root runs when it is asked for: ``make service-test``."""
    if os.environ.get("SQUIDBOT_DEPLOY_TESTS"):
        return
    skip = pytest.mark.skip(reason="takes minutes and root: make service-test")
    for item in items:
        if "deploy" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A container engine."""
    missing = engine_missing()
    if missing:
        pytest.skip(f"no container engine: {missing}")
    with ExitStack() as stack:
        try:
            one = stack.enter_context(running_engine(tmp_path_factory.mktemp("engine")))
            import_base(one)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            if not os.environ.get(_LENIENT):
                raise
            pytest.skip(f"no container engine or no base image on this machine: {error}")
        yield one


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """squidbot's image, built by the Dockerfile of this tree."""
    if os.environ.get(_LENIENT) and (missing := index_missing(engine)):
        pytest.skip(f"no image can be built on this machine: {missing}")
    build_image(engine)
    return "squidbot"


@pytest.fixture
def home_config(tmp_path: Path) -> Path:
    """The smallest configuration: no channel but the terminal, and the model that is built in."""
    config = tmp_path / "squidbot.yaml"
    config.write_text("gateway: {log: {format: json}}\n")
    config.chmod(0o644)
    return config
