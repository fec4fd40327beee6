"""
The daemon's side of one run: the order, the process that carries it out, what came of it. `run` is called on
the event loop, never in a thread: the runner ends with the thread that started it.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
from anyio.abc import Process

from agent_core.children.listener import PORT, Serve, listening, serve_listener
from agent_core.children.process_tree import end_below
from agent_core.children.rights import Ceilings, rights_of_version, rlimits_of, rules_for
from agent_core.children.seccomp import filter_program

_ROOT = str(Path(__file__).resolve().parents[2])
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); from agent_core.children.confined_child import main; main()"
)
_CREATE_RULESET = 444
_NEWEST = 7
"""A version of Landlock beside which the filter leaves most to it."""
_ATTEMPT_CODE = (
    "import sys; sys.path.append(sys.argv[1]); from agent_core.children.proof import attempt_all;"
    " attempt_all(eval(sys.argv[2]))"
)
_PYTHON = getattr(sys, "_base_executable", "") or sys.executable
"""Without the detour of a virtual environment, of which nothing is needed."""
_ENVIRONMENT = {"LC_CTYPE": "C.UTF-8"}
"""Otherwise the interpreter begins twice, because there is no locale. The program does not get it."""
_GRACE_S, _END_LIMIT_S = 10.0, 6.0
_MAX_REPORT_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement of a run: readable and writable paths, and the mechanisms."""

    landlock: int
    """The version of Landlock that is used."""
    private_in: str
    """Where each run gets a folder of its own."""
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    """Only names can be read below."""
    bubblewrap: str = ""
    """This program confines, and not Landlock."""
    connects: bool = False
    """There is a listener in the program's own network; needs ``bubblewrap`` or ``unit``."""
    unit: str = ""
    """The runner is started by the service manager for a connection to this socket."""
    groups: tuple[str, ...] = ()
    """Folders where a control group can be made that bounds the processes, for a user whom no limit binds."""
    machine: str = field(default_factory=platform.machine)


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """
    The result of a run.

    ``status`` is the exit code and ``signal`` the ending signal; neither is set if the run was ended at
    ``limit``: ``time``, ``still``, ``memory``, ``processes``, ``disk``, ``room`` (other processes seem to
    fill the disk), ``output``, ``lost`` (the runner itself was ended: what was done is unknown). ``error``:
    it was never started.
    """

    status: int | None = None
    signal: int = 0
    limit: str = ""
    error: str = ""
    head: bytes = b""
    tail: bytes = b""
    said_bytes: int = 0
    seconds: float = 0.0
    ended: int = 0
    """The number of processes that it left behind, which were ended."""
    network: str = ""
    """The name of the network that the runner was in."""


def landlock_version() -> int:
    """Return the kernel's Landlock ABI version, 0 if there is none. Confines nothing."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, 1)))


def sandbox_of(confinement: Confinement, private: str) -> dict[str, Any]:
    """Return the confining part of an order. Raises LookupError on an unknown machine type."""
    rights = rights_of_version(confinement.landlock)
    # Where there are no others, a signal reaches nobody else.
    version = _NEWEST if confinement.bubblewrap else confinement.landlock
    apart = bool(confinement.unit)
    connects = confinement.connects and (apart or bool(confinement.bubblewrap))
    return {
        "confine": True,
        "machine": confinement.machine,
        "rules": rules_for(
            confinement.landlock,
            readable=confinement.readable,
            writable=(*confinement.writable, private),
            listed=confinement.listed,
        )
        if confinement.landlock
        else [],
        # In a network of its own there is nothing but the listener.
        "handled": (rights.files, 0 if connects else rights.network, rights.scopes),
        "handled_size": rights.size,
        "filter": filter_program(confinement.machine, version, sockets="tcp" if connects else "none"),
        "groups": list(confinement.groups),
        "wrapped": bool(confinement.bubblewrap),
        "connects": connects,
    }


def order_of(
    words: Sequence[str],
    *,
    directory: str,
    environment: Mapping[str, str],
    limits: Ceilings,
    confinement: Confinement | None,
    attempts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    An order to `agent_core.children.confined_child`; ``attempts`` are made instead of running ``words``.

    A word that is too long for an argument is the script of a shell; it goes by a file.
    """
    private, script, words = "", "", list(words)
    environment = dict(environment)
    order: dict[str, Any] = {"confine": False, "wrapped": False, "connects": False, "groups": [], "rules": []}
    order |= {"linked": False, "unit": "", "port": PORT}
    if confinement is not None:
        private = f"{confinement.private_in}/{uuid4().hex[:12]}"
        environment["TMPDIR"] = private
        order |= sandbox_of(confinement, private)
        if len(words) == 3 and words[1] == "-c" and len(os.fsencode(words[2])) > 100_000:
            script = words[2]
            words = [words[0], f"{private}/script"]
        if confinement.bubblewrap:
            words = _wrapped(confinement, words, private, directory, attempts)
            attempts = None
        order["unit"] = confinement.unit
        order["linked"] = bool(confinement.unit)
        order["network"] = os.readlink("/proc/self/ns/net") if order["linked"] else ""  # noqa: PTH115 - no file
    return order | {
        "parent": os.getpid(),
        "listener": 0,
        "words": words,
        "script": script,
        "directory": directory,
        "environment": environment,
        "private": private,
        "disks": list(confinement.writable) if confinement else [],
        "rlimits": rlimits_of(limits) if confinement else [],
        "seconds": limits.seconds,
        "still": limits.still_seconds,
        "memory": limits.memory_bytes if confinement else 0,
        "processes": limits.processes,
        "disk": limits.disk_bytes if confinement else 0,
        "files": limits.files,
        "nice": limits.nice,
        "head": limits.head_bytes,
        "tail": limits.tail_bytes,
        "output": limits.output_bytes,
        "attempts": dict(attempts or {}),
    }


def _wrapped(
    confinement: Confinement,
    words: list[str],
    private: str,
    directory: str,
    attempts: Mapping[str, Any] | None,
) -> list[str]:
    """Build the bubblewrap command line; with ``attempts`` it runs an interpreter that makes them."""
    from agent_core.children.bubblewrap import wrap_command  # noqa: PLC0415 - not there everywhere

    readable = list(confinement.readable)
    if attempts:
        words = [_PYTHON, "-I", "-S", "-c", _ATTEMPT_CODE, _ROOT, repr(dict(attempts))]
        readable += [sys.base_prefix, str(Path(__file__).parents[1])]
    if confinement.connects:
        words = listening(_PYTHON, words)
        readable.append(sys.base_prefix)
    return wrap_command(
        confinement.bubblewrap,
        words,
        readable=readable,
        writable=(*confinement.writable, private),
        directory=directory,
    )


async def run(order: Mapping[str, Any], serve: Serve | None = None) -> ProgramOutcome:
    """Execute an order, ``serve`` its listener while it runs; cancelling ends all. Raises OSError."""
    if not order["connects"]:
        return await _carried_out(order)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found: list[ProgramOutcome | OSError] = []
    with ours, theirs:
        ours.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_listener, ours, serve or serve_nothing)
            try:
                found.append(await _carried_out({**order, "listener": theirs.fileno()}))
            except OSError as error:
                found.append(error)
            tasks.cancel_scope.cancel()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


async def serve_nothing(_listener: socket.socket) -> None:
    """Leave connections to the kernel, which accepts them; they wait for ever."""
    await anyio.sleep_forever()


async def _carried_out(order: Mapping[str, Any]) -> ProgramOutcome:
    process = await anyio.open_process(
        [_PYTHON, "-I", "-S", "-c", _CODE, _ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        start_new_session=True,
        pass_fds=[order["listener"]] if order["listener"] else (),
    )
    said = bytearray()
    try:
        with anyio.move_on_after(float(order["seconds"]) + _GRACE_S):
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.send(marshal.dumps(dict(order)))
            await process.stdin.aclose()
            async for piece in process.stdout:
                said += piece
                if len(said) > _MAX_REPORT_BYTES:
                    break
            await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await end_runner(process)
    try:
        report = marshal.loads(bytes(said))  # noqa: S302 - the runner wrote it, not the program
        return outcome_of(report)
    except (ValueError, EOFError, TypeError, KeyError):
        return ProgramOutcome(limit="lost")


def outcome_of(report: Mapping[str, Any]) -> ProgramOutcome:
    """Convert the report of a runner."""
    return ProgramOutcome(
        status=report.get("status"),
        signal=int(report.get("signal", 0)),
        limit=str(report.get("limit", "")),
        error=str(report.get("error", "")),
        head=bytes(report.get("head", b"")),
        tail=bytes(report.get("tail", b"")),
        said_bytes=int(report.get("bytes", 0)),
        seconds=float(report.get("seconds", 0.0)),
        ended=int(report.get("ended", 0)),
        network=str(report.get("network", "")),
    )


async def end_runner(process: Process) -> None:
    """TERM makes the runner end the whole tree; one that does not obey is killed, after all of its tree."""
    if process.returncode is None:
        with suppress(ProcessLookupError), anyio.move_on_after(_END_LIMIT_S):
            process.terminate()
            await process.wait()
    if process.returncode is None:
        await anyio.to_thread.run_sync(end_below, process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(_END_LIMIT_S):
        await process.wait()
        await process.aclose()
