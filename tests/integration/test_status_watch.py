"""`squidbot status --watch` on a pseudo-terminal, and how quick `squidbot status` is, against a real daemon."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon import REPOSITORY, Daemon

# A terminal's size is what the kernel says of it, whatever size the test runner notes in its environment.
_KEPT = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}}
ENVIRONMENT = {**_KEPT, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """A daemon without channels."""
    with Daemon(tmp_path_factory.mktemp("home") / "h", {}) as one:
        one.up()
        yield one


WATCH = """
import sys
import gateway.cli.watch_status
from gateway.cli import main
gateway.cli.watch_status.EVERY_S = float(sys.argv.pop(1))
main()
"""


class Terminal:
    """A terminal with a program in it, which looks every so many seconds."""

    def __init__(self, home, rows=24, columns=80, every_s=2.0):
        self.master, slave = pty.openpty()
        self.seen = b""
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(every_s), "status", "--watch", "--home", str(home)],
            stdin=slave, stdout=slave, stderr=slave, env=ENVIRONMENT, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, pattern, within_s=60.0):
        """Read until it is there; gives what came since the last time."""
        end, got = time.monotonic() + within_s, b""
        while not re.search(pattern, got, re.DOTALL):
            left = end - time.monotonic()
            assert left > 0, got
            if select.select([self.master], [], [], left)[0]:
                got += os.read(self.master, 65_536)
        return got

    def key(self, keys):
        os.write(self.master, keys)


@contextmanager
def terminal(home, **size):
    one = Terminal(home, **size)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        os.close(one.master)


@pytest.mark.parametrize("leave", [b"q", b"\x03", b"\x04", "SIGTERM"])
def test_it_shows_and_leaves_the_terminal_as_it_was(daemon, leave):
    """The status on a screen of its own; q, Ctrl-C, Ctrl-D and SIGTERM end it at once with code 0."""
    with terminal(daemon.home) as one:
        before = termios.tcgetattr(one.master)
        shown = one.until(rb"local chat +up")
        assert shown.index(b"\x1b[?1049h") < shown.index(b"squidbot")
        if leave == "SIGTERM":
            one.process.send_signal(signal.SIGTERM)
        else:
            one.key(leave)
        one.until(rb"\x1b\[\?1049l", within_s=5)
        assert one.process.wait(120) == 0
        assert termios.tcgetattr(one.master)[3] == before[3]


def test_it_draws_again_at_once_when_the_window_changes(daemon):
    """A smaller window: nothing is wider or longer than it, and that does not wait for the next look."""
    with terminal(daemon.home, every_s=600.0) as one:
        one.until(rb"local chat +up")
        one.resize(4, 30)
        one.until(rb"\x1b\[H(?:[^\r\n]{30,36}\r?\n){3}[^\r\n]{30,36}$", within_s=60)
        one.key(b"q")
        assert one.process.wait(120) == 0


def test_it_does_nothing_between_two_looks(daemon):
    """No busy loop: in four seconds it uses the processor for less than a quarter of one."""
    with terminal(daemon.home) as one:
        one.until(rb"local chat +up")

        def used_s():
            fields = Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before = used_s()
        time.sleep(4)
        assert used_s() - before < 0.25
        one.until(rb"local chat +up")


def test_without_a_terminal_it_tells_once(daemon):
    """In a pipe it is `squidbot status`."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "status", "--watch", "--home", str(daemon.home)],
        env=ENVIRONMENT, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert "local chat" in done.stdout
    assert "\x1b" not in done.stdout
