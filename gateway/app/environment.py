"""What every part of a gateway is built with: the settings, overrides of them, and what all parts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_core.memory_ports import MemoryPort
from agent_core.ports import Clock, LLMPort, ToolPort
from channels.base import Channel
from channels.heartbeat.channel import HeartbeatChannel, TickLog
from gateway.routing.access import Access
from gateway.routing.conversations import Conversations
from gateway.settings import Settings
from gateway.settings.accounts import access_of
from gateway.store.lease import LeaseTimes
from gateway.store.stores import Queue
from gateway.store.wakeups import Wakeups
from gateway.system.clock import SystemClock
from gateway.system.console_logins import ConsoleLogins
from gateway.system.home import Home
from gateway.turns.questions.review_questions import Approval
from gateway.turns.turn_kinds import TurnPolicy

Configured = Mapping[str, tuple[Channel, str]]
"""Channels by name, each with the way in which its messages are batched."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    Replaces parts of the settings in a test or a command.

    Args:
        heartbeat: Makes the heartbeat of the channels; None: no heartbeat.
        models: Models by their key under ``llm.models``.
        allow_from: Further allowed people.
    wrap_queue, wrap_memory: Wrap the queue's stores and the memory.
        policy: The limits of a turn.
        approval: Reply approval by channel, instead of the settings.
        turn_allowed_s: The time after which a turn counts as stuck; it is checked twice as often.
        lease: The duration of a shared database's lease.
    """

    clock: Clock | None = None
    channels: Configured | None = None
    heartbeat: Callable[[TickLog], HeartbeatChannel] | None = None
    models: Mapping[str, LLMPort] | None = None
    allow_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wrap_queue: Callable[[Queue], Queue] = lambda queue: queue
    wrap_memory: Callable[[MemoryPort], MemoryPort] = lambda memory: memory
    tools: Sequence[ToolPort] = ()
    policy: TurnPolicy = TurnPolicy()  # noqa: RUF009 - a frozen value
    approval: Mapping[str, Approval] = field(default_factory=dict)
    turn_allowed_s: float | None = None
    lease: LeaseTimes = LeaseTimes()  # noqa: RUF009 - a frozen value


@dataclass(frozen=True, slots=True)
class Environment:
    """The common dependencies of one gateway's parts. `Wakeups` is made before all that use it."""

    settings: Settings
    home: Home
    overrides: Overrides
    clock: Clock
    access: Access
    wakeups: Wakeups
    conversations: Conversations
    console: ConsoleLogins | None = None

    @classmethod
    def from_settings(cls, settings: Settings, home: Home, overrides: Overrides) -> Environment:
        """The environment of these settings."""
        access = access_of(settings, overrides.allow_from)
        conversations = Conversations(access, shared=settings.owner.conversation == "shared")
        clock = overrides.clock or SystemClock()
        http, console = settings.gateway.http, None
        if http is not None and http.console:
            console = ConsoleLogins(clock, http.console_url or f"http://{http.listen}")
        return cls(settings, home, overrides, clock, access, Wakeups(), conversations, console)
