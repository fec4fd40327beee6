"""
Tries to break out of a sandbox, from inside of it, before anything is run in one. `decoys` puts there what
must not be reached, `attempt_all` is what a confined process does, and `verdict` (pure) says what came of it.
What could not be tried counts as not held.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

PROBE_PROCESSES = 12
"""The limit of processes under which the attempts are made."""
_TOO_MANY = 60
_PTRACE, _PTRACE_SEIZE = {"x86_64": 101, "aarch64": 117}, 0x4206
_REFUSED, _DONE = "refused", "done"

ATTEMPTS: Mapping[str, str] = {
    "secret": "read squidbot's own files",
    "others": "read files of other users",
    "mode": "change the rights of squidbot's own files",
    "environment": "read the environment of other processes",
    "trace": "trace other processes",
    "signal": "end other processes",
    "socket": "reach squidbot's control socket",
    "abstract": "reach abstract sockets of other processes",
    "tcp": "reach services of this machine",
    "udp": "send datagrams",
    "outside": "write outside of its folders",
    "processes": "start any number of processes",
}
"""All that is tried, and how it is told."""


def attempt_all(given: Mapping[str, Any]) -> None:
    """Try everything; one line for each says what came of it. Only in a process that is to be confined."""
    for name in ATTEMPTS:
        try:
            result = _DONE if _TRIES[name](given) else _REFUSED
        except (TimeoutError, MemoryError):
            result = "not tried"
        except OSError:
            result = _REFUSED
        except Exception as error:  # noqa: BLE001 - told as what it is
            result = f"not tried ({type(error).__name__})"
        os.write(1, f"{name} {result}\n".encode())


def verdict(said: str, reached: Sequence[str] = ()) -> str:
    """
    Return what a confined process can do, by the lines of `attempt_all`; empty if it is confined.

    ``reached`` are the attempts that were seen to succeed from outside.
    """
    results = dict(line.partition(" ")[::2] for line in said.splitlines()) | dict.fromkeys(reached, _DONE)
    done = [what for name, what in ATTEMPTS.items() if results.get(name) == _DONE]
    if done:
        return f"a command could {', '.join(done)}"
    untried = [what for name, what in ATTEMPTS.items() if results.get(name) != _REFUSED]
    return f"it could not be tried whether a command can {', '.join(untried)}" if untried else ""


@dataclass(slots=True)
class Decoys:
    """Targets that must stay out of reach. ``given`` is the input of `attempt_all`."""

    given: dict[str, Any]
    datagrams: socket.socket

    def reached_decoys(self) -> list[str]:
        """Return the attempts that reached a decoy, whatever their report says."""
        with suppress(OSError):
            self.datagrams.recv(1)
            return ["udp"]
        return []


@contextmanager
def decoys(home: Path, outside: Sequence[Path], readable: Sequence[Path] = ()) -> Iterator[Decoys]:
    """
    Set up a secret in ``home``, a readable file, and listeners as targets. Raises OSError.

    It also names paths that must not be writable; ``readable`` folders are open to the command.
    """
    name = f"probe-{uuid4().hex[:12]}"
    secret = home / name
    secret.write_text("secret", encoding="ascii")
    secret.chmod(0o600)
    with (
        tempfile.TemporaryDirectory(prefix="squidbot-") as folder,
        _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)) as tcp,
        _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)) as udp,
        _bound(socket.AF_UNIX, socket.SOCK_STREAM, f"{folder}/s"),
        _bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0squidbot-{name}"),
    ):
        is_open = any(Path(folder).resolve().is_relative_to(each) for each in readable)
        others = (home if is_open else Path(folder)) / f"{name}-others"
        Path(folder).chmod(0o711)
        _put_for_all(others)
        places = [str(path / name) for path in (*outside, Path(folder))]
        given = {
            "secret": str(secret),
            "others": str(others),
            "daemon": os.getpid(),
            "socket": f"{folder}/s",
            "abstract": f"\0squidbot-{name}",
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "outside": [place + "-new" for place in places],
        }
        try:
            yield Decoys(given, udp)
        finally:
            for place in [secret, others, *map(Path, given["outside"])]:
                if os.path.lexists(place):  # on a disk that is read-only even looking for it is refused
                    place.unlink()


def _put_for_all(file: Path) -> None:
    """Make a file that everybody may read, another user's as far as this one can make one."""
    file.write_text("theirs", encoding="ascii")
    file.chmod(0o644)
    if os.getuid() == 0:
        with suppress(OSError):
            os.chown(file, 65534, 65534)


@contextmanager
def _bound(family: int, kind: int, address: Any) -> Iterator[socket.socket]:
    with socket.socket(family, kind) as made:
        made.bind(address)
        made.setblocking(False)
        if kind == socket.SOCK_STREAM:
            made.listen(4)
        yield made


# ── from inside ──


def _read_secret(given: Mapping[str, Any]) -> bool:
    with open(given["secret"], "rb") as file:  # noqa: PTH123 - the plainest way
        return file.read() != b""


def _read_others(given: Mapping[str, Any]) -> bool:
    with open(given["others"], "rb") as file:  # noqa: PTH123
        return file.read() != b""


def _change_mode(given: Mapping[str, Any]) -> bool:
    os.chmod(given["secret"], 0o644)  # noqa: PTH101 - a decoy
    return os.stat(given["secret"]).st_mode & 0o077 != 0  # noqa: PTH116


def _read_environment(given: Mapping[str, Any]) -> bool:
    with open(f"/proc/{given['daemon']}/environ", "rb") as file:  # noqa: PTH123
        file.read()
    return True


def _trace(given: Mapping[str, Any]) -> bool:
    # SEIZE does not stop it, and it is let go when this process ends.
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_PTRACE[platform.machine()], _PTRACE_SEIZE, given["daemon"], None, None)) == 0


def _signal(given: Mapping[str, Any]) -> bool:
    os.kill(given["daemon"], 0)
    return True


def _connect(family: int, kind: int, address: Any) -> bool:
    with socket.socket(family, kind) as made:
        made.settimeout(1.0)
        made.connect(address)
    return True


def _send_datagram(given: Mapping[str, Any]) -> bool:
    # Whether it arrives is seen outside: in a network of its own it may be sent and reach nobody.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", ("127.0.0.1", given["udp"]))
    return False


def _write_outside(given: Mapping[str, Any]) -> bool:
    for place in given["outside"]:
        with suppress(OSError):
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return True
    return False


def _fork_on(_given: Mapping[str, Any]) -> bool:
    """Return True if far more processes can start than allowed; they end when the pipe is closed."""
    reading, writing = os.pipe()
    started: list[int] = []
    try:
        while len(started) < _TOO_MANY:
            child = os.fork()
            if child == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
            started.append(child)
    except OSError:
        pass
    os.close(writing)
    for child in started:
        os.waitpid(child, 0)
    if not started:
        raise RuntimeError  # not one: then nothing was tried
    return len(started) >= _TOO_MANY


_TRIES: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "secret": _read_secret,
    "others": _read_others,
    "mode": _change_mode,
    "environment": _read_environment,
    "trace": _trace,
    "signal": _signal,
    "socket": lambda given: _connect(socket.AF_UNIX, socket.SOCK_STREAM, given["socket"]),
    "abstract": lambda given: _connect(socket.AF_UNIX, socket.SOCK_STREAM, given["abstract"]),
    "tcp": lambda given: _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", given["tcp"])),
    "udp": _send_datagram,
    "outside": _write_outside,
    "processes": _fork_on,
}
