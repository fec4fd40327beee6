"""
Marks every test here, and limits the time of the test function alone: what a server is made of is installed on
first use (``tests/servers.py``), which may take longer than any test should.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker("integration")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S, func_only=True))
