"""
Checks logins: each channel, an answer of each model pool, an account's encryption. While a daemon runs, its
own report is used: a second login of the same account would disturb it. Otherwise each channel really runs,
until it is up or says why not. It is given an inbox that takes nothing, so no message is acknowledged, and
none is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import anyio

from agent_core.messages import Amendment, InboundMessage, OutboundMessage, SessionKey
from agent_core.models import Message
from channels.base import AccountFinding, Channel, ChannelError, LinkState, SupportsAccountFindings
from gateway.cli.check.check_report import CheckReport, Finding, FindingLevel
from gateway.cli.check.voice_checks import check_listening, check_speaking
from gateway.errors import ConfigInvalid, StateUnusable, describe
from gateway.settings import Settings
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.ports import LLMPort
    from gateway.supervision.gateway import Gateway

_MODEL_LIMIT_S = 60.0
_AFTER_MENDING = "if you have changed its key or its settings, reload squidbot, which uses the old ones"
OWN_CHANNELS = ("terminal", "heartbeat")
_QUESTION = Message(role="user", content="Say OK.")

Position = Callable[[str], Awaitable[str | None]]


@runtime_checkable
class SelfTesting(Protocol):
    """A channel that can check more than its login: a mailbox must also be able to send."""

    account: str

    async def check(self) -> Mapping[str, str]:
        """Log in everywhere and test; return what was seen. Raises `ChannelError`."""


async def check_channel(
    channel: Channel, position: Position, *, limit_s: float = 30.0
) -> tuple[FindingLevel, str]:
    """
    Run ``channel`` until it has logged in, says why not, or the time is over; or let it examine itself.

    Args:
        channel: The channel; it is not closed.
        position: Gives the channel's committed positions.
    """
    inbox = _ClosedInbox(position)
    verdict = (
        FindingLevel.FAILED,
        f"no login within {limit_s:.0f} s; are address, port and http or https right, and can it be reached?",
    )
    with anyio.move_on_after(limit_s):
        try:
            async with anyio.create_task_group() as tasks:
                facts: Mapping[str, str] = {}
                if isinstance(channel, SelfTesting):
                    facts = await channel.check()
                else:
                    tasks.start_soon(channel.run, inbox)
                    await inbox.logged_in.wait()
                seen = "".join(f"\n{name}: {value}" for name, value in facts.items())
                verdict = (FindingLevel.OK, f"logged in as {channel.account}{seen}")
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            detail = str(describe(error).fields["detail"])
            return FindingLevel.FAILED, detail or type(error).__name__
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

    async def ignored_session(self, native_id: str, sender: str) -> SessionKey | None:
        return None

    async def find_sent_message(self, outbound_id: str) -> OutboundMessage | None:
        return None

    async def unconfirmed_sends(self) -> Sequence[str]:
        return []


def is_up(status: Mapping[str, Any], name: str) -> bool:
    """Return True if a running daemon has this channel connected."""
    return bool(status.get("channels", {}).get(name, {}).get("state") == LinkState.UP.value)


async def ask_failing(settings: Settings, status: Mapping[str, Any]) -> dict[str, str]:
    """
    Ask each model whose last call by the daemon failed; return their errors, "" of those that answer now.

    The daemon would know only after the next message that an error is mended.
    """
    members = [one for pool in status.get("models", {}).values() for one in pool]
    known = {name for pool in settings.llm.pools.values() for name in pool}
    failing = {one["name"] for one in members if one["error"]} & known
    if not failing:
        return {}
    from agent_core.llm.factory import build_models  # noqa: PLC0415 - rarely wanted
    from gateway.system.clock import SystemClock  # noqa: PLC0415 - as above

    alone = {"default_pool": min(failing), "pools": {name: (name,) for name in failing}}
    models = build_models(settings.llm.model_copy(update=alone), SystemClock())
    said: dict[str, str] = {}

    async def ask(name: str) -> None:
        said[name] = (await _error_of(models.pool(name)))[0]

    try:
        async with anyio.create_task_group() as tasks:
            for name in failing:
                tasks.start_soon(ask, name)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            await models.aclose()
    return said


def report_running(
    report: CheckReport, status: Mapping[str, Any], answering: Mapping[str, str] | None = None
) -> None:
    """Report what the daemon says about its channels and models; ``answering`` is what `ask_failing` gave."""
    report.ok("daemon", f"runs as process {status.get('pid')}; this is what it reports")
    for name, channel in status.get("channels", {}).items():
        if name in OWN_CHANNELS:
            continue
        up = is_up(status, name)
        # An error of before belongs to a state that is over.
        said = channel["detail"] or ("" if up else channel["last_error"])
        told = f"{channel['state']}{f': {said}' if said else ''}"
        if up:
            report.ok(name, told)
        else:
            report.fail(name, told, "squidbot logs --level warning says more")
    if shell := status.get("shell"):
        (report.ok if shell["ready"] else report.warn)("shell", shell["told"])
    for name, members in status.get("models", {}).items():
        before = {one["name"]: one["error"] for one in members if one["error"]}
        now = {model: (answering or {}).get(model, error) for model, error in before.items()}
        failing = [f"{model}: {error}" for model, error in now.items() if error]
        if before and not failing:
            told = "\n".join(f"{model}: {error}" for model, error in before.items())
            report.warn(f"model pool {name}", f"answers now; before\n{told}", _AFTER_MENDING)
        elif failing:
            note = report.fail if len(failing) == len(members) else report.warn
            note(f"model pool {name}", "\n".join(failing))
        else:
            answers = sum(one["answers"] for one in members)
            report.ok(f"model pool {name}", f"no errors in {answers} answers")


def report_findings(report: CheckReport, name: str, findings: Iterable[AccountFinding]) -> None:
    """Report what an account says of itself."""
    for one in findings:
        report.add(Finding(f"{name} {one.part}", FindingLevel(one.level), one.text, one.remedy))


async def check_parts(
    report: CheckReport, settings: Settings, home: Home, unreachable: Mapping[str, str]
) -> None:
    """
    Build a gateway and try its parts. The caller holds the home's lock.

    ``unreachable`` are accounts whose server was not reached, with the part of the report that says why.
    """
    from gateway.app import build  # noqa: PLC0415 - the heaviest import there is
    from gateway.app.state_folders import account_folders  # noqa: PLC0415 - as above
    from gateway.store.stores import StoreUnavailable, StoreUnusable  # noqa: PLC0415
    from gateway.system.clock import SystemClock  # noqa: PLC0415

    try:
        if settings.store_url is not None:  # the first process there says which state key counts
            async with account_folders(settings, home, SystemClock()):
                pass
        built = await build(settings, home)
    except (StoreUnusable, StoreUnavailable) as error:
        remedy = "squidbot check --data looks through it"
        report.fail("database", StateUnusable(str(error)), remedy if settings.store_url is None else "")
        return
    except ConfigInvalid as error:
        report.fail("database", error, "")
        return
    try:
        report.ok("database", built.store.snapshots.file)
        async with anyio.create_task_group() as tasks:
            for name, channel in built.channels.items():
                if name in unreachable:
                    report.skip(name, f"no login was tried, see {unreachable[name]}")
                elif name not in OWN_CHANNELS:
                    tasks.start_soon(_check_one, report, built, channel)
            tasks.start_soon(check_listening, report, settings, built)
            tasks.start_soon(check_speaking, report, settings, built)
            for pool in () if settings.llm.is_empty else built.models.pools:
                tasks.start_soon(_check_pool, report, built, pool)
        if settings.llm.is_empty:
            told = "no model is configured; the built-in demo model answers"
            report.warn("model", told, "name one under llm in the configuration")
        if not settings.channels.enabled():
            report.warn("channels", "none is enabled; only `squidbot chat` will work")
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            await _closed(built)


async def _closed(built: Gateway) -> None:
    for channel in built.channels.values():
        await channel.aclose()
    await built.models.aclose()
    await built.store.aclose()


async def _check_one(report: CheckReport, built: Gateway, channel: Channel) -> None:
    position = partial(built.store.inbox.position, channel.name, channel.account)
    verdict, text = await check_channel(channel, position)
    report.add(Finding(channel.name, verdict, text))
    if verdict is FindingLevel.OK and isinstance(channel, SupportsAccountFindings):
        try:
            with anyio.fail_after(20.0):
                report_findings(report, channel.name, await channel.account_findings(running=False))
        except (ChannelError, TimeoutError) as error:
            report.skip(f"{channel.name} account", f"the server does not say: {error}")


async def _error_of(pool: LLMPort) -> tuple[str, float]:
    """Ask a pool one tiny question; return its error or "", and the seconds that it took."""
    started, error = anyio.current_time(), ""
    try:
        with anyio.fail_after(_MODEL_LIMIT_S):
            async for _chunk in await pool.chat([_QUESTION], [], stream=False):
                pass
    except TimeoutError:
        error = f"no answer within {_MODEL_LIMIT_S:.0f} s"
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is the answer
        error = str(raised) or type(raised).__name__
    return error, anyio.current_time() - started


async def _check_pool(report: CheckReport, built: Gateway, name: str) -> None:
    part = f"model pool {name}"
    error, took_s = await _error_of(built.models.pool(name))
    if error:
        report.fail(part, error)
    else:
        report.ok(part, f"answered within {took_s:.1f} s")
    for note in built.models.notes(name):
        report.warn(part, note)
