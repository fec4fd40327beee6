"""
The metrics in Prometheus's text format: all names, and all values of their labels. The counters live in a
registry of our own, so that no library puts its numbers beside ours. They hold counts and channel names,
never an address or a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from channels.base import LinkState
from gateway.observability.logs import dropped_lines

if TYPE_CHECKING:
    from channels.status import ChannelStatus
    from gateway.store.stores import StoreStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)

# channel: the names under `channels:` (matrix, email, heartbeat, terminal)
INBOUND_ACCEPTED = Counter(
    "squidbot_inbound_accepted", "Messages accepted, to be answered", ["channel"], registry=REGISTRY
)
# reason: sender_not_allowed, sender_not_verified, not_addressed, and the reasons of the channels' own guards
INBOUND_IGNORED = Counter(
    "squidbot_inbound_ignored",
    "Messages recorded as seen and not answered",
    ["channel", "reason"],
    registry=REGISTRY,
)
# outcome: answered, command (answered without a model), deferred (the model is away), lost (claimed by
# somebody else), stopped (by a person), dead_lettered
TURNS = Counter("squidbot_turns", "Turns by outcome", ["channel", "outcome"], registry=REGISTRY)
TURN_SECONDS = Histogram(
    "squidbot_turn_seconds",
    "From the start of a turn to its commit",
    ["channel"],
    buckets=(0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 900),
    registry=REGISTRY,
)
# outcome: sent, retried, dead (given up), unknown (a person must decide)
OUTBOUND = Counter(
    "squidbot_outbound", "Outgoing messages, by outcome", ["channel", "outcome"], registry=REGISTRY
)
CHANNEL_UP = Gauge(
    "squidbot_channel_up", "1 while the channel is connected and caught up", ["channel"], registry=REGISTRY
)
# reason: link (lost or never made), operator (credentials or settings refused), defect
CHANNEL_RESTARTS = Counter(
    "squidbot_channel_restarts", "Restarts of a channel", ["channel", "reason"], registry=REGISTRY
)
# queue: inbox, outbox
QUEUE_AGE = Gauge(
    "squidbot_oldest_seconds",
    "Age of the oldest unfinished row that waits neither for a set time nor for a person; 0 without one",
    ["queue"],
    registry=REGISTRY,
)
# queue and state: those of gateway.store.states
QUEUE_ROWS = Gauge("squidbot_queue_rows", "Rows of the durable queue", ["queue", "state"], registry=REGISTRY)
# purpose: chat, heartbeat, job, background, consolidation; kind: prompt, completion
CACHED_TOKENS = Counter(
    "squidbot_cached_tokens",
    "Prompt tokens that the provider had cached",
    ["purpose"],
    registry=REGISTRY,
)
TOKENS = Counter("squidbot_tokens", "Tokens of model calls", ["purpose", "kind"], registry=REGISTRY)
BUDGET_SPENT_TOKENS = Gauge("squidbot_budget_spent_tokens", "Tokens spent today", registry=REGISTRY)
BUDGET_SPENT_USD = Gauge("squidbot_budget_spent_usd", "US dollars spent today", registry=REGISTRY)
BUDGET_LIMIT_TOKENS = Gauge(
    "squidbot_budget_limit_tokens", "Token limit per day; 0 without a limit", registry=REGISTRY
)
BUDGET_LIMIT_USD = Gauge(
    "squidbot_budget_limit_usd", "US dollar limit per day; 0 without a limit", registry=REGISTRY
)
# tier: heartbeat, background, consolidation, others, owner
BUDGET_REFUSALS = Counter(
    "squidbot_budget_refusals", "Model calls that the budget refused", ["tier"], registry=REGISTRY
)
# outcome: shown, failed (it raised), late (it took too long), dropped (too many were waiting)
ACKS = Counter(
    "squidbot_acks",
    "Acknowledgements of a message's progress, by outcome",
    ["channel", "outcome"],
    registry=REGISTRY,
)
LOG_LINES_DROPPED = Gauge(
    "squidbot_log_lines_dropped", "Log lines that could not be written", registry=REGISTRY
)
LOG_LINES_DROPPED.set_function(dropped_lines)


CONSOLIDATION_FAILING = Gauge(
    "squidbot_consolidation_failing", "Conversations whose consolidation has failed so far", registry=REGISTRY
)
# result: done, failed, deferred (by the budget)
CONSOLIDATIONS = Counter(
    "squidbot_consolidations",
    "History segments by outcome of their consolidation",
    ["result"],
    registry=REGISTRY,
)

TURNS_STALLED = Gauge("squidbot_turns_stalled", "1 while turns make no progress", registry=REGISTRY)
RUNNING_LONGEST = Gauge(
    "squidbot_turn_running_seconds", "Age of the oldest turn in flight", registry=REGISTRY
)
STORE_BLOCKED = Gauge("squidbot_store_blocked", "1 while the disk accepts no writes", registry=REGISTRY)
DISK_FREE = Gauge("squidbot_disk_free_bytes", "Free space where the home folder is", registry=REGISTRY)
BACKGROUND_JOBS = Gauge("squidbot_background_jobs", "Background jobs that have not ended", registry=REGISTRY)
HEARTBEAT_FAILURES = Gauge("squidbot_heartbeat_failures", "Consecutive failed check-ins", registry=REGISTRY)


def watch_vitals(
    stalled: Callable[[], bool],
    longest_s: Callable[[], float],
    blocked: Callable[[], bool],
    disk_free: Callable[[], float],
) -> None:
    """Read the gauges of life and disk from what knows them."""
    TURNS_STALLED.set_function(lambda: float(stalled()))
    RUNNING_LONGEST.set_function(longest_s)
    STORE_BLOCKED.set_function(lambda: float(blocked()))
    DISK_FREE.set_function(disk_free)


def show_heartbeat(state: Mapping[str, Any]) -> None:
    """Put what ``status`` tells of the check-ins into their gauge."""
    HEARTBEAT_FAILURES.set(state.get("failures") or 0)


def watch_budget(spent: Callable[[], tuple[float, float]], limits: tuple[float, float]) -> None:
    """Show what was spent, and what may be: tokens and US dollars."""
    BUDGET_LIMIT_TOKENS.set(limits[0])
    BUDGET_LIMIT_USD.set(limits[1])
    BUDGET_SPENT_TOKENS.set_function(lambda: spent()[0])
    BUDGET_SPENT_USD.set_function(lambda: spent()[1])


def watch_consolidation(state: Callable[[], Mapping[str, Any]]) -> None:
    """Read the gauge of consolidation from `ConsolidationQueue.state`."""
    CONSOLIDATION_FAILING.set_function(lambda: state()["failing_sessions"])


def show_channels(statuses: Iterable[ChannelStatus]) -> None:
    """Put the state of the links into their gauge."""
    for status in statuses:
        CHANNEL_UP.labels(status.name).set(status.state is LinkState.UP)


def show_store(stats: StoreStats) -> None:
    """Put the counts and ages of the durable queue into their gauges."""
    BACKGROUND_JOBS.set(stats.background_jobs)
    QUEUE_AGE.labels("inbox").set(stats.oldest_unanswered_s or 0)
    QUEUE_AGE.labels("outbox").set(stats.oldest_unsent_s or 0)
    for queue, counts in (("inbox", stats.inbox), ("outbox", stats.outbox)):
        for state, count in counts.items():
            QUEUE_ROWS.labels(queue, state).set(count)


def exposition() -> bytes:
    """All metrics as text."""
    return generate_latest(REGISTRY)
