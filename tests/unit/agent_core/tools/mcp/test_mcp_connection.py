"""What a server that has ended leaves to say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent_core.tools.mcp.sdk_client import _ended
from agent_core.tools.mcp.server_connection import Stderr


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("error: no such package\n\nhint: try again\n", "error: no such package hint: try again"),
        (
            "Error: no key\n    at main.js:3\n\nNode.js v22.1.0\n",
            "Error: no key at main.js:3 Node.js v22.1.0",
        ),
        ("x" * 300 + "\n" + "reason " * 60, "reason " * 60),
        ("y" * 900, "y" * 500),
        ("", ""),
    ],
)
def test_the_reason_of_an_end_is_in_the_last_lines_not_in_the_last_one(said, told):
    """The last one is a hint (uv), the version (Node), or the place of a file with more (npm)."""
    stderr = Stderr()
    stderr.add(said.encode())
    ended = _ended(SimpleNamespace(returncode=2), stderr)
    assert ended == "it ended with exit status 2" + (f"; its last words: {told.strip()}" if told else "")
