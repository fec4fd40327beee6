"""
`squidbot check`: is everything there that the daemon needs? The configuration, the home folder, a login at
each channel, an answer of each pool of models; in plain words, each with what to do.

While a daemon runs, its own report is used: a second login of the same account would disturb it. Otherwise
each channel really runs, until it is up or says why not. It is given an inbox that takes nothing, so no
message is acknowledged, and none is lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import anyio

from agent_core.messages import Amendment, InboundMessage
from agent_core.models import Message
from channels.base import Channel, LinkState
from gateway.clock import SystemClock
from gateway.errors import AlreadyRunning, ConfigInvalid, GatewayError, StateUnusable, describe
from gateway.home import Home, home_warnings, open_home
from gateway.mark import warning_of
from gateway.settings import Settings, load_settings

if TYPE_CHECKING:
    from gateway.app import Built

__all__ = ["Finding", "Report", "Verdict", "check", "check_channel"]

_LOGIN_LIMIT_S = 30.0
_MODEL_LIMIT_S = 60.0
_LITTLE_ROOM_BYTES = 200_000_000
_OWN_CHANNELS = ("terminal", "heartbeat")
_QUESTION = Message(role="user", content="Say OK.")

Position = Callable[[str], Awaitable[str | None]]


@runtime_checkable
class Examinable(Protocol):
    """A channel that can say more about itself than that it is up: a mailbox also has to be able to send."""

    account: str

    async def check(self) -> Mapping[str, str]:
        """Log in everywhere and try what can be tried; what was seen. A `ChannelError` says what is wrong."""
        ...


class Verdict(StrEnum):
    """How a part is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one part."""

    part: str
    verdict: Verdict
    text: str


@dataclass(slots=True)
class Report:
    """All findings, in the order in which they were made."""

    findings: list[Finding] = field(default_factory=list)
    exit_code: int = 0

    def add(self, part: str, verdict: Verdict, text: str) -> None:
        """Note a finding; a failed part makes the exit code 1 at least."""
        self.findings.append(Finding(part, verdict, text))
        if verdict is Verdict.FAILED:
            self.exit_code = self.exit_code or 1

    def fail(self, part: str, error: GatewayError) -> None:
        """Note an error that decides the exit code."""
        self.exit_code = error.exit_code
        self.add(part, Verdict.FAILED, str(error))

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {
            "ok": self.exit_code == 0,
            "findings": [
                {"part": one.part, "verdict": one.verdict.value, "text": one.text} for one in self.findings
            ],
        }

    def as_text(self) -> str:
        """The report for a person."""
        lines = []
        for one in self.findings:
            first, *rest = one.text.splitlines() or [""]
            lines.append(f"{one.verdict.value:<8} {one.part}: {first}")
            lines += [f"         {line}" for line in rest]
        return "\n".join(lines)


def check(home: Home, config: Path) -> Report:
    """Check everything, as far as it goes: what depends on something broken is left out."""
    report = Report()
    try:
        settings = load_settings(config)
    except ConfigInvalid as error:
        report.fail("configuration", error)
        return report
    report.add("configuration", Verdict.OK, f"{config}")
    for warning in settings.warnings:
        report.add("configuration", Verdict.WARNING, warning)
    try:
        _check_home(report, home)
    except StateUnusable as error:
        report.fail("home", error)
        return report
    anyio.run(_check_live, report, settings, home)
    return report


async def check_channel(
    channel: Channel, position: Position, *, limit_s: float = _LOGIN_LIMIT_S
) -> tuple[Verdict, str]:
    """
    Run ``channel`` until it has logged in, says why not, or the time is over; or let it examine itself.

    Args:
        channel: The channel; it is not closed.
        position: Gives the channel's committed positions.
        limit_s: How long it may take.
    """
    inbox = _ClosedInbox(position)
    verdict = (
        Verdict.FAILED,
        f"no login within {limit_s:.0f} s; are address, port and http or https right, and can it be reached?",
    )
    with anyio.move_on_after(limit_s):
        try:
            async with anyio.create_task_group() as tasks:
                facts: Mapping[str, str] = {}
                if isinstance(channel, Examinable):
                    facts = await channel.check()
                else:
                    tasks.start_soon(channel.run, inbox)
                    await inbox.logged_in.wait()
                seen = "".join(f"\n{name}: {value}" for name, value in facts.items())
                verdict = (Verdict.OK, f"logged in as {channel.account}{seen}")
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            detail = str(describe(error).fields["detail"])
            return Verdict.FAILED, detail or type(error).__name__
    return verdict


class _ClosedInbox:
    """An inbox that never takes anything, so nothing is acknowledged to a server."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self.logged_in = anyio.Event()

    async def accept(
        self,
        messages: Sequence[InboundMessage],
        positions: Mapping[str, str] | None = None,
        amendments: Sequence[Amendment] = (),
    ) -> None:
        # Whoever has something to hand over is logged in.
        self.logged_in.set()
        await anyio.sleep_forever()

    async def position(self, name: str) -> str | None:
        return await self._position(name)

    def report(self, state: LinkState, detail: str = "", **facts: Any) -> None:
        if state in (LinkState.UP, LinkState.CATCHING_UP):
            self.logged_in.set()

    async def delivered_id(self, provider_id: str) -> str | None:
        return None


def _check_home(report: Report, home: Home) -> None:
    open_home(home.root)
    report.add("home", Verdict.OK, str(home.root))
    for warning in home_warnings(home.root):
        report.add("home", Verdict.WARNING, warning)
    if older := warning_of(home.store_mark, SystemClock().now()):
        report.add("home", Verdict.WARNING, older)
    free = shutil.disk_usage(home.root).free
    if free < _LITTLE_ROOM_BYTES:
        report.add("home", Verdict.WARNING, f"only {free // 1_000_000} MB are free on its disk")


async def _check_live(report: Report, settings: Settings, home: Home) -> None:
    from gateway.control.client import ControlClient  # noqa: PLC0415 - needed in one of two cases
    from gateway.lock import hold_home, holder_of  # noqa: PLC0415

    if holder_of(home) is not None:
        try:
            status = await anyio.to_thread.run_sync(ControlClient(home).call, "status")
        except GatewayError as error:
            report.fail("daemon", error)
            return
        _report_running(report, status)
        return
    try:
        with hold_home(home, purpose="command"):
            await _check_parts(report, settings, home)
    except AlreadyRunning as error:
        report.fail("daemon", error)


def _report_running(report: Report, status: Mapping[str, Any]) -> None:
    report.add("daemon", Verdict.OK, f"runs as process {status.get('pid')}; this is what it says")
    for name, channel in status.get("channels", {}).items():
        if name in _OWN_CHANNELS:
            continue
        up = channel["state"] == LinkState.UP.value
        said = channel["detail"] or channel["last_error"]
        report.add(
            name, Verdict.OK if up else Verdict.FAILED, f"{channel['state']}{f': {said}' if said else ''}"
        )
    for name, members in status.get("models", {}).items():
        failing = [f"{one['name']}: {one['error']}" for one in members if one["error"]]
        verdict = Verdict.FAILED if len(failing) == len(members) else Verdict.WARNING
        if failing:
            report.add(f"model pool {name}", verdict, "\n".join(failing))
        else:
            answers = sum(one["answers"] for one in members)
            report.add(f"model pool {name}", Verdict.OK, f"no trouble in {answers} answers")


async def _check_parts(report: Report, settings: Settings, home: Home) -> None:
    from gateway.app import build  # noqa: PLC0415 - the heaviest import there is
    from gateway.work.port import StoreUnavailable, StoreUnusable  # noqa: PLC0415

    try:
        built = await build(settings, home)
    except (StoreUnusable, StoreUnavailable) as error:
        report.fail("database", StateUnusable(str(error)))
        return
    try:
        report.add("database", Verdict.OK, str(home.database))
        async with anyio.create_task_group() as tasks:
            for name, channel in built.channels.items():
                if name not in _OWN_CHANNELS:
                    tasks.start_soon(_check_one, report, built, channel)
            for pool in () if settings.llm.is_empty else built.models.pools:
                tasks.start_soon(_check_pool, report, built, pool)
        if settings.llm.is_empty:
            told = "no model is configured; the built-in demo model answers"
            report.add("model", Verdict.WARNING, told)
        if not settings.channels.enabled():
            report.add("channels", Verdict.WARNING, "none is switched on; only `squidbot chat` will work")
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            for channel in built.channels.values():
                await channel.aclose()
            await built.models.aclose()
            await built.store.aclose()


async def _check_one(report: Report, built: Built, channel: Channel) -> None:
    position = partial(built.store.position, channel.name, channel.account)
    report.add(channel.name, *await check_channel(channel, position))


async def _check_pool(report: Report, built: Built, name: str) -> None:
    part = f"model pool {name}"
    started = anyio.current_time()
    try:
        with anyio.fail_after(_MODEL_LIMIT_S):
            async for _chunk in await built.models.pool(name).chat([_QUESTION], [], stream=False):
                pass
    except TimeoutError:
        report.add(part, Verdict.FAILED, f"no answer within {_MODEL_LIMIT_S:.0f} s")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        report.add(part, Verdict.FAILED, str(error) or type(error).__name__)
    else:
        report.add(part, Verdict.OK, f"answered within {anyio.current_time() - started:.1f} s")
