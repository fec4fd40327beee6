"""
The sandbox in which commands of the assistant run: what it opens, whether it was proved, one run. A command
works in the folder ``work`` of the workspace. It reads and writes there and in what else lies directly in the
workspace, except hidden names and those that prompts are built of (`agent_core.workspace`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import structlog

from agent_core.children import bubblewrap, rights
from agent_core.children import order as process
from agent_core.children.listener import PROXY, Serve
from agent_core.children.order import Confinement, ProgramOutcome
from agent_core.children.proof import ATTEMPTS, PROBE_PROCESSES, decoys, verdict
from agent_core.children.removal import remove_folder
from agent_core.children.rights import Ceilings
from agent_core.children.seccomp import ARCHITECTURES
from agent_core.workspace import is_of_prompt

Backend = Literal["auto", "unit", "bubblewrap", "landlock"]
"""What confines; ``auto`` is the strongest that holds here."""
_Way = Literal["unit", "bubblewrap", "landlock"]

_PROBE_LIMIT_S, _STILL_LIMIT_S = 60.0, 5.0
"""
For each of the two runs of a trial. On a busy machine it waits for a processor: that is slow, and says
nothing of the sandbox. One in which nothing happens any more hangs.
"""
_TRIAL = 'echo one | cat && echo two > "$TMPDIR/a" && rm "$TMPDIR/a"'
_UNIT_PRIVATE = "/tmp"  # noqa: S108 - that of the unit
_GROUPS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
_CONNECTS = ", with a proxy to the hosts of tools.shell.network"
_CONNECTS_NOT = ", without any network: Landlock alone cannot give tools.shell.network"
_AGAIN = "the daemon tries it again by itself"
_OWN_USER = "run squidbot as a user of its own"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of the sandbox's self-test; ``held`` is None before it, ``help`` is the remedy."""

    held: bool | None = None
    told: str = "the sandbox has not been tried yet"
    help: str = ""
    temporary: bool = False
    """It may hold when it is tried again: the machine was too busy, or a disk full."""

    def __str__(self) -> str:
        return f"{self.told}; {self.help}" if self.help else self.told


@dataclass(frozen=True, slots=True)
class SandboxFolders:
    """
    The part of the disk that commands see: the ``workspace`` in squidbot's ``home``, and ``readable`` ones.

    ``readable_now`` returns more of these, asked before each run; it may block. ``private_in`` has one folder
    per run; what lies at ``secret`` is in no folder that they may read.
    """

    workspace: Path
    home: Path
    private_in: Path
    secret: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    readable_now: Callable[[], Sequence[Path]] = tuple

    def without_links(self) -> SandboxFolders:
        """Return them without links in their paths."""
        secret, readable = ([path.resolve() for path in each] for each in (self.secret, self.readable))
        return replace(
            self,
            workspace=self.workspace.resolve(),
            home=self.home.resolve(),
            secret=secret,
            readable=readable,
        )

    @property
    def work(self) -> Path:
        """Return the directory in which commands start."""
        return self.workspace / "work"

    def problem(self) -> str:
        """Return why these must not be opened to commands; empty if they may be."""
        for folder in (self.workspace, *self.readable, *map(Path, rights.SYSTEM)):
            problem = rights.folder_problem(folder, self.home, self.workspace)
            held = [path for path in (self.home, *self.secret) if path.is_relative_to(folder)]
            if problem or held:
                return problem or f"{folder} holds {held[0]}"
        return ""

    def sweep(self) -> None:
        """Remove folders of runs that a crash has left."""
        self.private_in.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.private_in.iterdir():
            remove_folder(str(left)) if left.is_dir() and not left.is_symlink() else left.unlink()


class CommandSandbox:
    """
    Confines by a unit of its own, bubblewrap or Landlock, and by seccomp.

    Args:
        environment: Variables in addition to the necessary ones.
        connects: Commands may use a proxy, in a network of their own.
        unit: The service manager's socket for runners, if any.
    """

    def __init__(
        self,
        folders: SandboxFolders,
        *,
        environment: Mapping[str, str] | None = None,
        limits: Ceilings = Ceilings(),  # noqa: B008 - a frozen value
        backend: Backend = "auto",
        connects: bool = False,
        unit: Path | None = None,
    ) -> None:
        self._folders = folders.without_links()
        self._environment = dict(environment or {})
        self.limits = limits
        self.landlock = process.landlock_version()
        """The kernel's version of it; 0: it has none."""
        self._backend = backend
        self._may_connect = connects
        self.wrapper = bubblewrap.find_program()
        """The program bubblewrap; empty: there is none."""
        self._unit = unit
        self._way: _Way = "landlock"
        self.proof = Proof()

    @property
    def connects(self) -> bool:
        """Return True if commands get a listener in their network; the caller serves it."""
        return self._may_connect and self._way != "landlock"

    @property
    def work(self) -> Path:
        """Return the directory in which commands start."""
        return self._folders.work

    async def prove(self) -> Proof:
        """
        Try to break out of the strongest sandbox that may be used; where it does not hold, of the next one.

        Without a verdict, as on a machine that is too busy, there is no sandbox, and no weaker one either.
        Never fails: what goes wrong is a reason not to use the sandbox.
        """
        for way in self._ways():
            self.proof = Proof(told="the sandbox is being tried")  # nothing is run meanwhile
            self._way = way
            self.proof = await self._tried()
            if self.proof.temporary:
                self.proof = await self._tried()
            if self.proof.held:
                _log.info("sandbox.proved", how=self.proof.told)
                break
            _log.warning("sandbox.refused", reason=self.proof.told, help=self.proof.help)
            if self.proof.temporary:
                break
        return self.proof

    def _ways(self) -> list[_Way]:
        if self._backend != "auto":
            return [self._backend]
        ways: list[_Way] = ["bubblewrap"] if self.wrapper else []
        if self._unit is not None and self._unit.is_socket():
            ways.insert(0, "unit")
        return [*ways, "landlock"]

    async def _tried(self) -> Proof:
        try:
            with anyio.fail_after(_PROBE_LIMIT_S * 2 + 2):
                return await self._proved()
        except TimeoutError:
            return Proof(False, "the trial of the sandbox did not end in time", _AGAIN, temporary=True)
        except OSError as error:
            told = f"the sandbox cannot be tried: {error.strerror or error}"
            return Proof(False, told, _AGAIN, temporary=True)

    async def run(self, command: str, *, seconds: float, serve: Serve | None = None) -> ProgramOutcome:
        """Run a shell command, ``serve`` its proxy. Raises OSError, or RuntimeError if not proved."""
        if not self.proof.held:
            raise RuntimeError("the sandbox was not proved")
        limits = replace(self.limits, seconds=seconds)
        return await _run(await self._order(["/bin/sh", "-c", command], limits), serve)

    async def _order(
        self, words: Sequence[str], limits: Ceilings, attempts: Mapping[str, object] | None = None
    ) -> Mapping[str, Any]:
        confinement = await anyio.to_thread.run_sync(self._confinement)
        environment = rights.environment_for(
            os.environ,
            self._environment,
            home=str(self.work),
            private="",
            proxy=PROXY if self.connects else "",
        )
        return process.order_of(
            words,
            directory=str(self.work),
            environment=environment,
            limits=limits,
            confinement=confinement,
            attempts=attempts,
        )

    def _confinement(self) -> Confinement:
        for folder in (self.work, self._folders.private_in):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        apart = self._way == "unit"
        return Confinement(
            landlock=self.landlock,
            bubblewrap=self.wrapper if self._way == "bubblewrap" else "",
            connects=self.connects,
            readable=tuple(map(str, (*self._folders.readable, *self._folders.readable_now()))),
            writable=tuple(_entries(self._folders.workspace)),
            listed=(str(self._folders.workspace),),
            private_in=_UNIT_PRIVATE if apart else str(self._folders.private_in.resolve()),
            unit=str(self._unit) if self._way == "unit" else "",
            groups=_GROUPS if os.getuid() == 0 and not apart else (),
        )

    async def _proved(self) -> Proof:
        if (reason := self._cannot()) is not None:
            return reason
        await anyio.to_thread.run_sync(self._folders.sweep)
        small = replace(
            self.limits,
            seconds=_PROBE_LIMIT_S,
            still_seconds=_STILL_LIMIT_S,
            processes=PROBE_PROCESSES,
            nice=0,  # it is ours, and ends
        )
        home, workspace, readable = self._folders.home, self._folders.workspace, self._folders.readable
        outside = [home, workspace, Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - to be refused
        began = time.monotonic()
        with decoys(self._folders.private_in, outside, readable) as there:
            tried = await _run(await self._order(["-"], small, there.given))
            reached = there.reached_decoys()
        if tried.limit == "lost" and time.monotonic() - began >= _PROBE_LIMIT_S:
            raise TimeoutError  # the runner itself was too slow
        if trouble := self._trouble_of(tried):
            return self._not_set_up(trouble)
        if self._way == "bubblewrap" and not tried.head.startswith(tuple(map(str.encode, ATTEMPTS))):
            return self._not_wrapped(tried)
        said = tried.head.decode("utf-8", "replace")
        if tried.limit == "processes":
            said += "processes refused\n"  # the last attempt; the runner was before the kernel
        if found := verdict(said, reached):
            return Proof(False, f"the sandbox does not hold: {found}", "run squidbot on a newer Linux")
        harmless = await _run(await self._order(["/bin/sh", "-c", _TRIAL], small))
        if harmless.limit in ("time", "lost"):
            raise TimeoutError
        if harmless.status != 0 or harmless.head != b"one\n":
            said = harmless.error or harmless.limit or harmless.head.decode("utf-8", "replace").strip()[:200]
            return Proof(False, f"a harmless command does not run in the sandbox ({said or 'no answer'})")
        return Proof(True, self._describe())

    def _describe(self) -> str:
        """Describe the confinement for people."""
        landlock = f"Landlock {self.landlock}" if self.landlock else "no Landlock"
        told = ("a unit for each command, " if self._way == "unit" else "") + (
            "bubblewrap" if self._way == "bubblewrap" else landlock
        )
        told += " and seccomp"
        if self._may_connect:
            told += _CONNECTS if self.connects else _CONNECTS_NOT
        return told

    def _trouble_of(self, tried: ProgramOutcome) -> str:
        """Return why the self-test could not run, or "". Raises TimeoutError if it took too long."""
        if tried.limit == "time":
            raise TimeoutError
        if tried.limit == "still" and self._way != "bubblewrap":
            return "it hangs"
        if tried.limit == "lost":
            return "the runner has ended without a report"
        own = os.readlink("/proc/self/ns/net")  # noqa: PTH115 - no file
        if not tried.error and self._way == "unit" and tried.network == own:
            return "it has no network of its own"
        return tried.error

    def _missing(self) -> Proof | None:
        """Return a failed proof if the program or socket that this backend needs is missing."""
        if self._way == "bubblewrap" and not self.wrapper:
            return Proof(False, "there is no bubblewrap", "install it (bwrap), or let backend be auto")
        if self._way == "unit" and (self._unit is None or not self._unit.is_socket()):
            return Proof(False, f"nothing listens at {self._unit}", "install squidbot-shell.socket")
        return None

    def _cannot(self) -> Proof | None:
        """Return a failed proof if a requirement rules the sandbox out before the self-test."""
        if (missing := self._missing()) is not None:
            return missing
        if self.landlock < 1 and self._way in ("unit", "landlock"):
            return Proof(
                False, "the kernel has no Landlock", "run squidbot on Linux 5.13 or newer with Landlock on"
            )
        if os.uname().machine not in ARCHITECTURES:
            return Proof(False, f"the system calls of {os.uname().machine} are not known to the sandbox")
        problem = self._folders.problem()
        return Proof(False, problem, "name another folder") if problem else None

    def _not_wrapped(self, tried: ProgramOutcome) -> Proof:
        """Bubblewrap itself has said something, or nothing."""
        said = " ".join(tried.head.decode("utf-8", "replace").split())[:200]
        said = said or ("it hangs" if tried.limit == "still" else "it says nothing")
        return Proof(
            False, f"bubblewrap does not work here ({said})", "it needs user namespaces; let backend be auto"
        )

    def _not_set_up(self, error: str) -> Proof:
        if "control group" in error:
            told = "squidbot runs as root, whose processes no limit binds, and no control group can be made"
            return Proof(False, told, _OWN_USER)
        if self._way == "unit":
            log = "look at journalctl -u 'squidbot-shell@*'"
            return Proof(False, f"a command in a unit of its own does not run ({error})", log)
        return Proof(False, f"the sandbox cannot be set up ({error})")


async def _run(order: Mapping[str, Any], serve: Serve | None = None) -> ProgramOutcome:
    if not order["linked"]:
        return await process.run(order, serve)
    from agent_core.children.external_runner import run_in_unit  # noqa: PLC0415 - rarely wanted

    return await run_in_unit(order, serve)


def _entries(workspace: Path) -> list[str]:
    """Return the writable entries of the workspace: no links, hidden files or prompt files."""
    found = []
    with os.scandir(workspace) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            if is_of_prompt(entry.name) or entry.name == "memory" or entry.name.startswith("."):
                continue
            if plain or stat.S_ISDIR(status.st_mode):
                found.append(entry.path)
    return found
