"""
Keeps the channels running: one task group per channel, a restart after every end, and a status of each. A
lost link is retried with exponential back-off, reset after some uptime; refused credentials or settings
slowly, as servers lock accounts; an unexpected exception is logged and treated like a lost link. Channels do
not affect each other. Links are reported by ``Inbox.report`` to `Supervisor.report`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import random
from typing import Any

import anyio
import structlog

from agent_core.backoff import AUTH_RETRY, LINK_RETRY, Backoff
from agent_core.ports import Clock
from channels.base import (
    Channel,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    Inbox,
    LinkState,
)
from channels.status import ChannelStatus
from gateway.errors import leaves
from gateway.observability import metrics

STABLE_AFTER_S = 60.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Watched:
    channel: Channel
    inbox: Inbox
    status: ChannelStatus
    link_backoff: Backoff
    operator_backoff: Backoff
    up_at: float | None = None
    retry: anyio.Event = field(default_factory=anyio.Event)


class Supervisor:
    """
    Runs channels. ``on_change`` receives each status and must not raise.

    Failures count from one again after `STABLE_AFTER_S` of uptime.
    """

    def __init__(self, clock: Clock, *, on_change: Callable[[ChannelStatus], None] | None = None) -> None:
        self._clock = clock
        self._on_change = on_change
        self._watched: dict[str, _Watched] = {}
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._changed = anyio.Event()

    def watch(self, channel: Channel, inbox: Inbox) -> None:
        """Add a channel before `run`, which keeps it running. Raises ValueError for a known name."""
        if channel.name in self._watched:
            raise ValueError(f"two channels are called {channel.name!r}")
        self._watched[channel.name] = _Watched(
            channel=channel,
            inbox=inbox,
            status=ChannelStatus(channel.name, channel.account, LinkState.CONNECTING, self._clock.now()),
            link_backoff=Backoff(LINK_RETRY, STABLE_AFTER_S),
            operator_backoff=Backoff(AUTH_RETRY, STABLE_AFTER_S),
        )

    async def run(self) -> None:
        """Run all channels until `stop` or cancellation. No failure of a channel comes out of here."""
        if self._stopped:
            return
        async with anyio.create_task_group() as channels:
            self._scope = channels.cancel_scope
            for watched in self._watched.values():
                metrics.CHANNEL_UP.labels(watched.channel.name).set(0)
                channels.start_soon(self._keep_running, watched, name=f"channel {watched.channel.name}")

    def stop(self) -> None:
        """Receive nothing more: `run` ends as soon as the channels have stopped."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    def report(
        self, name: str, state: LinkState, detail: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        """Take a channel's report about its link. Facts of an earlier report stay until they are replaced."""
        watched = self._watched[name]
        if state is LinkState.UP:
            watched.up_at = self._clock.monotonic() if watched.up_at is None else watched.up_at
        else:
            watched.up_at = None
        old = watched.status
        self._set(watched, state, detail, facts={**old.facts, **(facts or {})}, retry_at=None)

    def retry(self, name: str) -> None:
        """Run a channel that waits after a failure again now, as when a person has logged in."""
        self._watched[name].retry.set()

    def statuses(self) -> list[ChannelStatus]:
        """All channels, in the order in which they were given."""
        return [_with_last_contact(watched) for watched in self._watched.values()]

    def status(self, name: str) -> ChannelStatus:
        """One channel."""
        return _with_last_contact(self._watched[name])

    def is_up(self, name: str) -> bool:
        """Return True if one channel is connected and caught up."""
        return self.status(name).state is LinkState.UP

    @property
    def all_up(self) -> bool:
        """Return True if every channel is connected and caught up."""
        return all(status.state is LinkState.UP for status in self.statuses())

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return as soon as ``ready()`` is true; it is asked after every change of a status."""
        while not ready():
            await self._changed.wait()

    async def _keep_running(self, watched: _Watched) -> None:
        while True:
            watched.up_at = None
            self._set(watched, LinkState.CONNECTING, "connecting", retry_at=None)
            error: Exception | None = None
            try:
                await watched.channel.run(watched.inbox)
            except Exception as caught:  # noqa: BLE001 - the one place where a channel's failure ends
                error = caught
            delay_s = self._ended(watched, error)
            watched.retry = anyio.Event()
            with anyio.move_on_after(delay_s):
                await watched.retry.wait()

    def _ended(self, watched: _Watched, error: Exception | None) -> float:
        """Note the end of a run and say how long to wait before the next."""
        up_s = 0.0 if watched.up_at is None else self._clock.monotonic() - watched.up_at
        watched.up_at = None
        speaker = _speaker(error)
        operator = isinstance(speaker, (ChannelAuthFailed, ChannelMisconfigured))
        backoff = watched.operator_backoff if operator else watched.link_backoff
        asked_s = getattr(speaker, "retry_after_s", None) or 0.0
        delay_s = backoff.note_failure(up_s=up_s, random=random(), at_least_s=min(max(asked_s, 0.0), 3600.0))
        if not operator and up_s > 0:
            watched.operator_backoff.reset()  # credentials that worked once make an earlier refusal history
        detail = _sentence(speaker)
        why = "operator" if operator else "link" if isinstance(speaker, ChannelError | None) else "defect"
        self._log_end(watched, error, speaker, why, delay_s)
        metrics.CHANNEL_RESTARTS.labels(watched.channel.name, why).inc()
        now = self._clock.now()
        self._set(
            watched,
            LinkState.FAILED if operator else LinkState.DOWN,
            detail,
            restarts=watched.status.restarts + 1,
            last_error=detail,
            last_error_at=now,
            retry_at=now + timedelta(seconds=delay_s),
        )
        return delay_s

    def _log_end(
        self,
        watched: _Watched,
        error: Exception | None,
        speaker: BaseException | None,
        why: str,
        delay_s: float,
    ) -> None:
        known: dict[str, Any] = {"channel": watched.channel.name, "retry_in_s": round(delay_s, 1)}
        if why == "defect":
            _log.error("channel.crashed", exc_info=error, **known)
        elif why == "operator":
            _log.error("channel.refused", **_fields(speaker), **known)
        else:
            _log.warning("channel.lost", **_fields(speaker), **known)

    def _set(self, watched: _Watched, state: LinkState, detail: str, **changes: Any) -> None:
        old = watched.status
        is_same = state is old.state or {state, old.state} == {LinkState.DOWN, LinkState.CONNECTING}
        since = old.since if is_same else self._clock.now()
        watched.status = replace(old, state=state, since=since, detail=detail, **changes)
        if watched.status == old:
            return
        if state is not old.state:
            metrics.CHANNEL_UP.labels(watched.channel.name).set(state is LinkState.UP)
            if state in (LinkState.UP, LinkState.CATCHING_UP):
                _log.info("channel.changed", channel=watched.channel.name, state=state.value, detail=detail)
        self._changed.set()
        self._changed = anyio.Event()
        if self._on_change is not None:
            self._on_change(watched.status)


def _with_last_contact(watched: _Watched) -> ChannelStatus:
    """The status, with when the server was last heard of, if the channel knows."""
    heard_at = getattr(watched.channel, "last_contact_at", None)
    return watched.status if heard_at is None else replace(watched.status, heard_at=heard_at)


def _speaker(error: BaseException | None) -> BaseException | None:
    """Return a group's decisive error: one for the operator, else a defect, else a lost link."""
    if error is None:
        return None
    inner = list(leaves(error))
    for kind in ((ChannelAuthFailed, ChannelMisconfigured), ChannelError):
        # A defect beside a lost link is the more interesting of the two.
        found = [leaf for leaf in inner if isinstance(leaf, kind)]
        if found and (kind is not ChannelError or len(found) == len(inner)):
            return found[0]
    return next((leaf for leaf in inner if not isinstance(leaf, ChannelError)), inner[0])


def _sentence(error: BaseException | None) -> str:
    if error is None:
        return "the channel stopped by itself"
    if isinstance(error, ChannelError):
        return str(error)
    return f"unexpected {type(error).__name__}; the log has the details"


def _fields(error: BaseException | None) -> dict[str, Any]:
    fields = dict(error.fields) if isinstance(error, ChannelError) else {}
    # Names that the log line itself uses are not the channel's to set.
    for name in ("event", "channel", "retry_in_s", "level", "timestamp", "exc_info"):
        fields.pop(name, None)
    return {**fields, "error": type(error).__name__ if error else "returned", "detail": _sentence(error)}
