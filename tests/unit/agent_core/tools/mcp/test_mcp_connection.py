"""What a server that has ended leaves to say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent_core.tools.mcp.sdk_client import _ended, parsed_line
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


_RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'


def test_an_answer_behind_a_log_text_without_a_line_end_counts():
    """Programs write a progress text to the same stream."""
    for before in (b"", b"  ", b"INFO ready ", b"50%..."):
        assert parsed_line(before + _RESULT, is_own=False) is not None


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        (b"INFO ready " + _RESULT, True),
        (b"got " + b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', False),
        (b"said '" + _RESULT + b"'", False),
        (b"Welcome to the server!", False),
        (b"{not json}", False),
    ],
)
def test_a_log_text_that_is_no_answer_is_none(line, is_own):
    """Negative control: what a log repeats is no request, and nobody's words on a server of the owner's own."""
    assert parsed_line(line, is_own=is_own) is None
