"""
The command line as processes that cost a fork: one process has imported it and forks a child for each command.

A child has the arguments, the environment, the working folder and the standard streams of its caller, runs
`gateway.cli.main` and ends as a command does. What only a fresh interpreter shows (which modules are loaded, the
encoding of the streams, what Python itself says on stderr) is tested with ``python -m gateway``.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Never, TextIO

ROOT = Path(__file__).parents[1]
STREAMS = 3
LONGEST_REQUEST = 200_000


class ForkedCommand:
    """A command that runs: what tests use of `subprocess.Popen`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.returncode: int | None = None
        line.settimeout(60)
        self.pid = int(line.recv(20))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code once it has ended, negative where a signal ended it."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            self.returncode = int(self._line.recv(20))
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def start_command(
    *arguments: str, env: Mapping[str, str], stdin: int, stdout: int, stderr: int, in_terminal: bool = False
) -> ForkedCommand:
    """Start ``squidbot`` with these arguments and streams; ``in_terminal`` makes stdin its terminal."""
    mine, its = socket.socketpair()
    asked = {"arguments": arguments, "env": dict(env), "cwd": os.getcwd(), "in_terminal": in_terminal}
    with its:
        socket.send_fds(_forking(), [json.dumps(asked).encode()], [stdin, stdout, stderr, its.fileno()])
    return ForkedCommand(mine)


def run_command(
    *arguments: str, env: Mapping[str, str], stdin: str | IO[str] = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run ``squidbot`` as `subprocess.run` would, with the text or the file as its stdin."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        reading, writing = os.pipe()
        try:
            given = reading if isinstance(stdin, str) else stdin.fileno()
            streams = {"stdin": given, "stdout": out.fileno(), "stderr": err.fileno()}
            process = start_command(*arguments, env=env, **streams)
        finally:
            os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(stdin.encode() if isinstance(stdin, str) else b"")
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())


@functools.cache
def _forking() -> socket.socket:
    """The way to the process that forks; it ends when this one does."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST_REQUEST)
    path = os.pathsep.join([str(ROOT), str(ROOT / "deploy"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(its.fileno())],
            env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
        )  # fmt: skip
    atexit.register(lambda: (mine.close(), process.wait(60)))
    return mine


def _serve(requests: socket.socket) -> None:
    """Fork a child for each request, until nobody can make one; raises SystemExit in the child."""
    os.environ |= {"PYDANTIC_DISABLE_PLUGINS": "__all__", "FROZENLIST_NO_EXTENSIONS": "1"}
    import gateway.app.daemon
    import gateway.cli.chat
    import gateway.cli.commands  # noqa: F401

    gc.freeze()
    while True:
        asked, fds, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, STREAMS + 1)
        if not asked:
            return
        if os.fork() == 0:
            requests.close()
            _accompany(json.loads(asked), fds)
        for number in fds:
            os.close(number)
        while _reaped():
            pass


def _reaped() -> int:
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def _accompany(asked: dict[str, Any], fds: list[int]) -> None:
    """Fork the command, and say how it is called and how it has ended; only the command returns."""
    command = os.fork()
    if command == 0:
        _become(asked, fds)
        return
    line = fds[STREAMS]
    os.write(line, f"{command:<20}".encode())
    for number in fds[:STREAMS]:
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    os.write(line, f"{code:<20}".encode())
    os._exit(0)


def _opened(stream: TextIO, mode: str) -> IO[str]:
    """Open a standard stream again, which may be another kind of file now."""
    return open(stream.fileno(), mode, encoding=stream.encoding, errors=stream.errors, closefd=False)


def _become(asked: dict[str, Any], fds: list[int]) -> None:
    for place, number in enumerate(fds[:STREAMS]):
        os.dup2(number, place)
    os.closerange(STREAMS, 256)
    sys.stdin, sys.stdout, sys.stderr = map(_opened, (sys.stdin, sys.stdout, sys.stderr), "rww")
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ |= asked["env"]
    time.tzset()
    if asked["in_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # Ctrl-C reaches it, also where the tests themselves run in the background and are deaf to it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(ROOT / "gateway" / "__main__.py"), *asked["arguments"]]
    from gateway.cli import main

    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            _leave(ended.code)
        raise


def _leave(code: int) -> Never:
    """End as Python does, but without freeing what was imported: a fork would copy all of that for it."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
