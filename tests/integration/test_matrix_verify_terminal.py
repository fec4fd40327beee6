"""`squidbot matrix verify` as an operator uses it: in a terminal, beside the daemon, against an Element-like client."""

from __future__ import annotations

import os
import pty
import sys
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest

from tests.daemon import REPOSITORY, Daemon, matrix_settings
from tests.integration.matrix_bot import call
from tests.integration.test_matrix_element import account, person, secret_room  # noqa: F401


class Terminal:
    """A command with a terminal of its own, what it has shown, and a keyboard."""

    def __init__(self, *command):
        self.shown = ""
        self.code = None
        self._pid, self._master = pty.fork()
        if self._pid == 0:  # pragma: no cover - the child
            path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
            os.execve(command[0], command, {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"})

    def look(self):
        """Take in what is shown until the command ends."""
        while True:
            try:
                piece = os.read(self._master, 4096)
            except OSError:  # what Linux says when the other end is closed
                break
            if not piece:
                break
            self.shown += piece.decode(errors="replace")
        self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._master)

    def type(self, text):
        os.write(self._master, text.encode())

    async def until(self, text):
        with anyio.fail_after(60):
            while text not in self.shown:
                assert self.code is None, self.shown
                await anyio.sleep(0.05)


@pytest.mark.parametrize("answer", ["y", "n"])
async def test_an_operator_compares_in_a_terminal(
    synapse,
    fresh_credentials,
    tmp_path,
    person,  # noqa: F811 - a fixture
    account,  # noqa: F811 - a fixture
    answer,
):
    """The same emoji on both sides; a yes makes the client trust the bot, a no does not; the exit code tells."""
    bot = fresh_credentials("bot")
    given = matrix_settings(synapse, bot.user_id, bot.password, account.user_id)
    settings = {"agents": {"heartbeat": {"enabled": False}}, "channels": {"matrix": given}}
    outcome = SimpleNamespace(seen=None, error=None)
    with Daemon(tmp_path / "home", settings) as daemon:
        await call(daemon.up)
        async with person(account) as uma, anyio.create_task_group() as group:
            await uma.do("bootstrap", password=account.password)
            room = await secret_room(uma, bot)
            home = ("--home", str(daemon.home))
            terminal = Terminal(sys.executable, "-m", "gateway", "matrix", "verify", *home)
            group.start_soon(anyio.to_thread.run_sync, terminal.look)
            await terminal.until("begin in your client")

            async def verify():
                try:
                    outcome.seen = await uma.do("verify", user=bot.user_id, room=room)
                except Exception as error:
                    outcome.error = error

            group.start_soon(verify)
            await terminal.until("see the same?")
            assert not await uma.do("trust", user=bot.user_id)
            terminal.type(f"{answer}\n")
            with anyio.fail_after(60):
                while terminal.code is None or (outcome.seen is None and outcome.error is None):
                    await anyio.sleep(0.05)
                while answer == "y" and not await uma.do("trust", user=bot.user_id):
                    await anyio.sleep(0.1)
            trusted = await uma.do("trust", user=bot.user_id)

    assert trusted is (answer == "y")
    assert terminal.code == (0 if answer == "y" else 1), terminal.shown
    if answer == "y":
        assert outcome.error is None
        assert all(emoji in terminal.shown for emoji in outcome.seen["emoji"])
