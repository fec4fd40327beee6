"""Fixtures for every test. A module that wants virtual time overrides ``anyio_backend`` by `virtual_backend`."""

from __future__ import annotations

import pytest

from tests.clock import VirtualLoop

pytest_plugins = ["tests.servers"]


@pytest.fixture
def anyio_backend() -> object:
    """Asyncio is what the libraries below us speak."""
    return "asyncio"


@pytest.fixture
def virtual_backend() -> object:
    """In a test module: ``@pytest.fixture`` / ``def anyio_backend(virtual_backend): return virtual_backend``."""
    return ("asyncio", {"loop_factory": VirtualLoop})
