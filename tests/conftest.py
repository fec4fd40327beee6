"""
Fixtures for every test. A module that wants virtual time overrides ``anyio_backend`` by `virtual_backend`.

Property tests draw the same examples in every run, so that a change is what makes them fail; ``make explore``
lets them look where nobody has looked.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

from tests.clock import VirtualLoop

pytest_plugins = ["tests.servers"]

hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=1000)
hypothesis.settings.load_profile("explore" if os.environ.get("SQUIDBOT_EXPLORE") else "same")


@pytest.fixture
def anyio_backend() -> object:
    """Asyncio is what the libraries below us speak."""
    return "asyncio"


@pytest.fixture
def virtual_backend() -> object:
    """In a test module: ``@pytest.fixture`` / ``def anyio_backend(virtual_backend): return virtual_backend``."""
    return ("asyncio", {"loop_factory": VirtualLoop})
