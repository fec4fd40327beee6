"""A program that goes on running is started, or it is said why not; the daemon waits for neither."""

from __future__ import annotations

import fcntl
import os

import pytest

from agent_core.children.long_running import serving


async def test_pipes_that_are_small_make_nobody_wait(monkeypatch):
    """A command that has very many pipes leaves its user, the daemon too, small ones. The control has its size."""
    environment = {"LARGE": "x" * 30_000}
    async with serving(["/bin/sh", "-c", 'echo "${#LARGE}"'], environment=environment) as program:
        assert await program.stdout.receive() == b"30000\n"
    pipe = os.pipe

    def small():
        ends = pipe()
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
        return ends

    monkeypatch.setattr(os, "pipe", small)
    with pytest.raises(OSError, match="unavailable"):
        async with serving(["/bin/true"], environment=environment):
            raise AssertionError
