"""
Takes, renews and releases the lease of a home whose database other machines also reach. The lease is a row
that expires by the server's clock; its holder measures it too, from before each renewal, on a clock that runs
during sleep, so that it assumes an earlier end. Without renewal the process stops in order after ``lost_s``
and ends at ``ended_s``, before ``ttl_s``; after a freeze `LeaseKeeper.check` ends it before anything else
runs (`gateway.system.process_tuning`), and the database refuses late calls
(`MaintenanceStore.require_lease`). Each holder is new and has a new fence. A file of the home names its
holders: whoever locks the home, on this machine and folder, knows that they are dead.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import structlog

from gateway.errors import ConfigInvalid, GatewayError, leaves
from gateway.store.model import Machine
from gateway.store.sql.maintenance_store import MaintenanceStore
from gateway.store.store_errors import StoreUnavailable, StoreUnusable

DAEMON = "daemon"
"""The name of the lease of a home."""
_FOR_COMMANDS = "Give the command on that machine, or stop squidbot on all machines first."
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """
    The times of a lease in seconds: validity, renewal interval, retry interval, loss, forced exit, and the
    interval at which a standby asks for it.
    """

    ttl_s: float = 30.0
    renewed_s: float = 10.0
    retried_s: float = 2.0
    lost_s: float = 20.0
    ended_s: float = 25.0
    asked_s: float = 1.0


class LeaseTaken(GatewayError):
    """Another squidbot works on the database."""

    temporary = True
    exit_code = 75


class LeaseLost(GatewayError):
    """Another squidbot may work on the database from now on."""

    temporary = True
    exit_code = 75


@contextmanager
def unwrap_lost_lease() -> Iterator[None]:
    """Replace a group of exceptions by the lost lease, or the refused database, in it: that is the reason."""
    try:
        yield
    except BaseExceptionGroup as group:
        for kind in (LeaseLost, ConfigInvalid):
            if (reason := next((leaf for leaf in leaves(group) if isinstance(leaf, kind)), None)) is not None:
                raise reason from group
        raise


def process_of(holder: str) -> str:
    """Return a holder's name in readable form."""
    host, _, process = holder.rpartition("/")[0].rpartition("/")
    return f"process {process} on {host}"


async def machine_facts(store: MaintenanceStore, *, here: str = "") -> dict[str, Any]:
    """Return for ``status`` what each machine of a home does; ``here`` is the holder that reports."""
    return {"machines": facts_of(await store.machines(DAEMON, ttl_s=LeaseTimes().ttl_s), here=here)}


def facts_of(machines: Sequence[Machine], *, here: str = "") -> list[dict[str, Any]]:
    """Return what each of these machines does, as ``status`` shows it."""
    return [
        {
            "process": process_of(one.holder),
            "here": one.holder == here,
            "does": "active" if one.active else "standing by" if one.lives else "missing",
            "version": one.version,
            "up_s": round(one.since_s),
            "seen_s": round(one.seen_s),
        }
        for one in machines
    ]


def boot_time() -> float:
    """Return the seconds since the machine booted, including the time that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Holders:
    """Records the home's lease-holder names in a file, under the home's lock."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def new(self) -> tuple[str, Sequence[str]]:
        """Make and record a name for this process; return it with the names of its dead predecessors."""
        name = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
        before = self._before()
        self._write([*before, name][-8:])
        return name, before

    def keep_only(self, name: str) -> None:
        """Record that no other holder has anything any more."""
        self._write([name])

    def _place(self) -> str:
        """Identify this folder on this machine since its boot; a copy, or the disk elsewhere, differs."""
        with suppress(OSError):
            folder = self._file.parent.stat()
            return f"{_BOOT.read_text(encoding='ascii').strip()} {folder.st_dev} {folder.st_ino}"
        return ""

    def _before(self) -> list[str]:
        with suppress(OSError, ValueError, TypeError, KeyError):
            noted = json.loads(self._file.read_text(encoding="utf-8"))
            if noted["place"] and noted["place"] == self._place():
                return [str(name) for name in noted["holders"]]
        return []

    def _write(self, names: Sequence[str]) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            new = self._file.with_name(f"{self._file.name}.new")
            new.write_text(json.dumps({"place": self._place(), "holders": list(names)}), encoding="utf-8")
            new.replace(self._file)
        except OSError as error:  # the next start waits until the lease expires
            _log.info("lease.holder_not_recorded", path=str(self._file), error=str(error))


def _end(code: int) -> None:
    os._exit(code)


class LeaseKeeper:
    """
    Takes the lease of a home, relies on it from `begin` on, renews and releases it.

    Args:
        where: The database, as errors may show it.
        machine: The machine and folder for ``status``; "" for a command.
        version: Of squidbot there.
        clock: Seconds that continue during sleep.
        end: Ends the process at once.
    """

    def __init__(
        self,
        store: MaintenanceStore,
        where: str,
        holders: Holders,
        *,
        machine: str = "",
        version: str = "",
        times: LeaseTimes = LeaseTimes(),  # noqa: B008 - a frozen value
        clock: Callable[[], float] = boot_time,
        end: Callable[[int], Any] = _end,
    ) -> None:
        self._store = store
        self._where = where
        self._holders = holders
        self._machine = machine
        self._version = version
        self._times = times
        self._clock = clock
        self._end = end
        self._holder = ""
        self._fence: int | None = None
        self._renewed_at = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._shown_at = -math.inf

    @property
    def is_held(self) -> bool:
        """Return True if this process holds the lease."""
        return self._fence is not None

    @property
    def holder(self) -> str:
        """The name of this process, once `take` was called."""
        return self._holder

    @property
    def age_s(self) -> float:
        """The seconds since the last renewal."""
        return self._clock() - self._renewed_at

    @property
    def proof(self) -> tuple[str, str, int] | None:
        """Name, holder and fence, by which the database recognises and refuses a former holder."""
        return None if self._fence is None else (DAEMON, self._holder, self._fence)

    async def take(self) -> None:
        """Take the lease. Raises LeaseTaken or StoreUnavailable."""
        if not await self._ask(self._named()):
            raise LeaseTaken(
                f"another squidbot works on {self._where}, or did until a moment ago: "
                f"{await self.other_holder()}. {_FOR_COMMANDS}",
                path=self._where,
            )

    async def wait(self, stop: anyio.Event, standing_by: anyio.Event) -> bool:
        """Stand by for the lease, over outages; False if ``stop`` came first. Raises StoreUnusable."""
        before, failing = self._named(), False
        while not stop.is_set():
            try:
                if await self._ask(before):
                    self._renewed(self._renewed_at)
                    _log.info("lease.taken", path=self._where)
                    with suppress(StoreUnavailable):
                        await self._show()
                    return True
                await self._show()
                if not standing_by.is_set():
                    _log.info("lease.standing_by", path=self._where, daemon=await self.other_holder())
                    standing_by.set()
                failing = False
            except StoreUnavailable as error:
                if not failing:
                    _log.warning("lease.not_asked_for", error=str(error))
                failing = True
            with anyio.move_on_after(self._times.asked_s):
                await stop.wait()
        return False

    def _named(self) -> Sequence[str]:
        """Name this process, once; return its dead predecessors."""
        self._holder, before = self._holders.new()
        return before

    async def _ask(self, before: Sequence[str]) -> bool:
        began = self._clock()
        fence = await self._store.lease(
            DAEMON, holder=self._holder, ttl_s=self._times.ttl_s, instead_of=before
        )
        if fence is None:
            return False
        self._holders.keep_only(self._holder)
        self._fence = fence
        self._store.require_lease(DAEMON, holder=self._holder, fence=fence)
        self._renewed_at = began
        return True

    async def _show(self) -> None:
        """Let ``status`` show that this machine lives, as often as a lease is renewed."""
        if self._machine and self._clock() - self._shown_at >= self._times.renewed_s:
            await self._store.show_machine(
                self._machine, holder=self._holder, version=self._version, ttl_s=self._times.ttl_s
            )
            self._shown_at = self._clock()

    async def begin(self) -> None:
        """
        Rely on the lease from now on. Raises LeaseLost or StoreUnavailable.

        Before, nothing was in progress, so the time since `take` does not matter on a busy machine.
        """
        assert self._fence is not None, "taken first"
        began = self._clock()
        if not await self._store.renew_lease(
            DAEMON, holder=self._holder, fence=self._fence, ttl_s=self._times.ttl_s
        ):
            raise LeaseLost(await self._taken_over(), path=self._where)
        self._renewed(began)
        await self._show()

    async def run(self) -> None:
        """Renew the lease until released. Raises LeaseLost: all work on the database must stop."""
        pause_s = self._times.renewed_s
        while True:
            await anyio.sleep(max(0.0, min(pause_s, self._times.lost_s - self.age_s)))
            if self._fence is None:
                return
            self.confirm()
            renewed = await self._renew(self._fence)
            if renewed:
                with suppress(StoreUnavailable):
                    await self._show()
            pause_s = self._times.renewed_s if renewed else self._times.retried_s

    async def _renew(self, fence: int) -> bool:
        began, held = self._clock(), None
        with suppress(StoreUnavailable), anyio.move_on_after(max(0.0, self._times.lost_s - self.age_s)):
            held = await self._store.renew_lease(
                DAEMON, holder=self._holder, fence=fence, ttl_s=self._times.ttl_s
            )
        if held:
            self._renewed(began)
        elif held is False and self._fence is not None:
            raise LeaseLost(await self._taken_over(), path=self._where)
        return bool(held)

    def confirm(self) -> None:
        """Check the lease before something that cannot be undone. Raises LeaseLost."""
        if self._fence is not None and self.age_s >= self._times.lost_s:
            raise LeaseLost(self._silent(), path=self._where)

    def check(self) -> None:
        """End the process at once if another one may have begun."""
        is_relied_on = self._fence is not None and self._deadline is not None
        if is_relied_on and self.age_s >= self._times.ended_s:
            _log.critical("lease.lost", path=self._where, silent_s=round(self.age_s, 1))
            with suppress(OSError):
                sys.stderr.write(f"squidbot: {self._silent()}\n")
                sys.stderr.flush()
            self._end(LeaseLost.exit_code)

    async def release(self) -> None:
        """Let the next holder begin at once, and show this machine no longer; it may be standing by."""
        self._fence = None
        if self._deadline is not None:
            self._deadline.cancel()
        # A process that cannot give it back ends all the same: the next holder finds it free a little later.
        with suppress(StoreUnavailable, StoreUnusable), anyio.move_on_after(self._times.retried_s):
            if self._holder:  # perhaps it was just being taken
                await self._store.release_lease(DAEMON, holder=self._holder)
            if self._machine and self._holder:
                await self._store.hide_machine(self._machine, holder=self._holder, version=self._version)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[LeaseKeeper]:
        """Hold the lease during the block. Raises LeaseTaken, LeaseLost (cancelled), StoreUnavailable."""
        await self.take()
        try:
            await self.begin()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.run)
                yield self
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            errors = list(leaves(group))
            lost = next((error for error in errors if isinstance(error, LeaseLost)), None)
            raise lost or errors[0] from group
        finally:
            with anyio.CancelScope(shield=True):
                await self.release()

    def _renewed(self, began: float) -> None:
        self._renewed_at = began
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(
            max(0.0, self._times.ended_s - self.age_s) + 0.01, self.check
        )

    async def _taken_over(self) -> str:
        return f"another squidbot has taken over {self._where} ({await self.other_holder()})"

    def _silent(self) -> str:
        return (
            f"{self._where} has not been reached for {self.age_s:.0f} seconds, or this machine slept: another"
            " squidbot may work on it now, so this one ends; start it again"
        )

    async def other_holder(self) -> str:
        """Name the holder of the lease, if it is another one, in readable form."""
        with suppress(StoreUnavailable), anyio.move_on_after(self._times.retried_s):
            for lease in await self._store.leases():
                if lease.name == DAEMON and lease.holder != self._holder:
                    return process_of(lease.holder)
        return "it does not say who it is"
