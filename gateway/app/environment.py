"""What every part of a gateway is built with: the settings, overrides of them, and what all parts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_core.memory_ports import MemoryPort
from agent_core.ports import Clock, LLMPort, ToolPort
from channels.base import Channel
from channels.heartbeat.channel import HeartbeatChannel, TickLog
from gateway.operations.send import access_of
from gateway.queue.lease import LeaseTimes
from gateway.queue.stores import Queue
from gateway.queue.wakeups import Wakeups
from gateway.routing.access import Access
from gateway.routing.conversations import Conversations
from gateway.settings import Settings
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from gateway.turns.approvals.drafts_and_quarantine import Approval
from gateway.turns.kinds import TurnPolicy

Configured = Mapping[str, tuple[Channel, str]]
"""Channels by name, each with the way in which its messages are batched."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    Replaces parts of the settings in a test or a command.

    Args:
        heartbeat: Makes the heartbeat of those channels; without it they have none.
        models: Models by the name of their key under ``llm.models``.
        allow_from: Who may talk on those channels, besides what the settings say.
        wrap_queue, wrap_memory: Put something around the queue's stores, around the memory.
        policy: How much is done for one turn.
        approval: Whose answers the owner sees first, by channel, instead of what the settings say.
        turn_allowed_s: How long a turn may take before it counts as stuck, looked at twice as often.
        lease: How long the lease on a database of several machines holds.
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

    @classmethod
    def from_settings(cls, settings: Settings, home: Home, overrides: Overrides) -> Environment:
        """The environment of these settings."""
        access = access_of(settings, overrides.allow_from)
        conversations = Conversations(access, shared=settings.owner.conversation == "shared")
        clock = overrides.clock or SystemClock()
        return cls(settings, home, overrides, clock, access, Wakeups(), conversations)
