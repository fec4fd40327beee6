"""
What the gateway counts, in the text format of Prometheus: all names, and all values of their labels.

The counters live in a registry of our own, so that no library puts its numbers beside ours. They hold
counts and channel names, never an address or a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from channels.base import LinkState
from gateway.logs import dropped_lines

if TYPE_CHECKING:
    from gateway.supervisor import ChannelStatus
    from gateway.work.port import StoreStats

__all__ = [
    "CHANNEL_RESTARTS",
    "CHANNEL_UP",
    "CONSOLIDATIONS",
    "CONSOLIDATION_FAILING",
    "CONTENT_TYPE",
    "INBOUND_ACCEPTED",
    "INBOUND_IGNORED",
    "LOG_LINES_DROPPED",
    "OUTBOUND",
    "REGISTRY",
    "STORE_AGE",
    "STORE_ROWS",
    "TOKENS",
    "TURNS",
    "TURN_SECONDS",
    "exposition",
    "show_channels",
    "show_store",
    "watch_consolidation",
]

CONTENT_TYPE = CONTENT_TYPE_LATEST
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)

# channel: the names under `channels:` (matrix, email, heartbeat, terminal)
INBOUND_ACCEPTED = Counter(
    "squidbot_inbound_accepted", "Messages taken over, to be answered", ["channel"], registry=REGISTRY
)
# reason: sender_not_allowed, sender_not_verified, not_addressed, and the reasons of the channels' own guards
INBOUND_IGNORED = Counter(
    "squidbot_inbound_ignored",
    "Messages remembered as seen and not answered",
    ["channel", "reason"],
    registry=REGISTRY,
)
# outcome: answered, deferred (the model is away), lost (claimed by somebody else), buried
TURNS = Counter("squidbot_turns", "Turns by how they ended", ["channel", "outcome"], registry=REGISTRY)
TURN_SECONDS = Histogram(
    "squidbot_turn_seconds",
    "From the start of a turn to its commit",
    ["channel"],
    buckets=(0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 900),
    registry=REGISTRY,
)
# outcome: sent, retried, dead (given up), unknown (a person must decide)
OUTBOUND = Counter(
    "squidbot_outbound", "Messages on their way out, by outcome", ["channel", "outcome"], registry=REGISTRY
)
CHANNEL_UP = Gauge(
    "squidbot_channel_up", "1 while the channel is connected and caught up", ["channel"], registry=REGISTRY
)
# why: link (lost or never made), operator (credentials or settings refused), defect
CHANNEL_RESTARTS = Counter(
    "squidbot_channel_restarts", "Restarts of a channel", ["channel", "why"], registry=REGISTRY
)
# queue: inbox, outbox
STORE_AGE = Gauge(
    "squidbot_oldest_seconds", "Age of the oldest unfinished row; 0 without one", ["queue"], registry=REGISTRY
)
# queue and state: those of gateway.work.states
STORE_ROWS = Gauge("squidbot_rows", "Rows of the durable queue", ["queue", "state"], registry=REGISTRY)
# purpose: chat, heartbeat, consolidation; kind: prompt, completion
TOKENS = Counter("squidbot_tokens", "Tokens of model calls", ["purpose", "kind"], registry=REGISTRY)
LOG_LINES_DROPPED = Gauge(
    "squidbot_log_lines_dropped", "Log lines that could not be written", registry=REGISTRY
)
LOG_LINES_DROPPED.set_function(dropped_lines)


CONSOLIDATION_FAILING = Gauge(
    "squidbot_consolidation_failing", "Conversations that could not be condensed yet", registry=REGISTRY
)
# what: segments (condensed), failures
CONSOLIDATIONS = Gauge("squidbot_consolidations", "Condensing since the start", ["what"], registry=REGISTRY)


def watch_consolidation(state: Callable[[], Mapping[str, Any]]) -> None:
    """Read the gauges of condensing from a `Consolidator.state`."""
    CONSOLIDATION_FAILING.set_function(lambda: state()["failing_sessions"])
    CONSOLIDATIONS.labels("segments").set_function(lambda: state()["segments"])
    CONSOLIDATIONS.labels("failures").set_function(lambda: state()["failures"])


def show_channels(statuses: Iterable[ChannelStatus]) -> None:
    """Put the state of the links into their gauge."""
    for status in statuses:
        CHANNEL_UP.labels(status.name).set(status.state is LinkState.UP)


def show_store(stats: StoreStats) -> None:
    """Put the counts and ages of the durable queue into their gauges."""
    STORE_AGE.labels("inbox").set(stats.oldest_unanswered_s or 0)
    STORE_AGE.labels("outbox").set(stats.oldest_unsent_s or 0)
    for queue, counts in (("inbox", stats.inbox), ("outbox", stats.outbox)):
        for state, count in counts.items():
            STORE_ROWS.labels(queue, state).set(count)


def exposition() -> bytes:
    """All metrics as text."""
    return generate_latest(REGISTRY)
