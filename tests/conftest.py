"""
Fixtures for every test. A module that wants virtual time overrides ``anyio_backend`` by `virtual_backend`.

``make test`` leaves out what is marked ``slow``: single tests that say so, and all that talks to real servers or kills
processes, but for one of each kind, which is marked ``smoke``. ``make test-all`` runs everything.

Property tests draw the same examples in every run, so that a change is what makes them fail; ``make explore``
lets them look where nobody has looked.
"""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from tests.clock import VirtualLoop

pytest_plugins = ["tests.servers"]

HERE = Path(__file__).parent
SLOW = tuple(HERE / folder for folder in ("deploy", "integration", "kill", "soak"))

hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=1000)
hypothesis.settings.load_profile("explore" if os.environ.get("SQUIDBOT_EXPLORE") else "same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        real = item.get_closest_marker("integration") or item.get_closest_marker("kill")
        slow = real or any(item.path.is_relative_to(folder) for folder in SLOW)
        if slow and not item.get_closest_marker("smoke"):
            item.add_marker("slow")


@pytest.fixture
def anyio_backend() -> object:
    """Asyncio is what the libraries below us speak."""
    return "asyncio"


@pytest.fixture
def virtual_backend() -> object:
    """In a test module: ``@pytest.fixture`` / ``def anyio_backend(virtual_backend): return virtual_backend``."""
    return ("asyncio", {"loop_factory": VirtualLoop})
