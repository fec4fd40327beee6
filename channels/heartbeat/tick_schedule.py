"""
Computes which tick is due, and makes its message. Pure. Ticks stand at multiples of the interval since
1970-01-01 UTC, so that an accepted tick is known for ever. The active hours are local; of all missed ticks
the newest fires when the window opens. A last tick more than an interval in the future came from a wrong
clock and is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from agent_core.messages import InboundMessage, MessageContext, Sender, SessionKey
from channels.heartbeat.silence import SILENCE

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_MILLISECOND = timedelta(milliseconds=1)
MINUTES_PER_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Schedule:
    """
    Ticks every ``interval_minutes`` in a daily window of local minutes.

    The end is excluded, before the start it is on the next day; equal: never. ``zone`` None: the machine's.
    """

    interval_minutes: float
    start_minute: int = 0
    end_minute: int = MINUTES_PER_DAY
    zone: tzinfo | None = UTC

    @property
    def interval(self) -> timedelta:
        """The interval, in whole milliseconds."""
        return max(round(self.interval_minutes * 60_000), 1) * _MILLISECOND

    def newest(self, now: datetime) -> datetime:
        """The newest tick that is not after ``now``."""
        return _EPOCH + (now - _EPOCH) // self.interval * self.interval

    def following(self, now: datetime) -> datetime:
        """The first tick after ``now``."""
        return self.newest(now) + self.interval

    def next_run(self, now: datetime) -> datetime | None:
        """Return the next tick in the active hours if none is late; None: there are no active hours."""
        if self.is_open(now):
            fired = self.newest(now)
        elif (closed := self._first(now, -_MINUTE)) is not None:
            fired = self.newest(closed + _MINUTE - _MILLISECOND)
        else:
            return None
        instant = max(fired + self.interval, now)
        return instant if self.is_open(instant) else self._first(instant, _MINUTE)

    def _first(self, moment: datetime, step: timedelta) -> datetime | None:
        """The first whole minute from here on, or back, that is within the active hours."""
        minute = moment.replace(second=0, microsecond=0)
        for _ in range(2 * MINUTES_PER_DAY):  # summer time may leave out one opening
            minute += step
            if self.is_open(minute):
                return minute
        return None

    def is_open(self, now: datetime) -> bool:
        """Return True if ``now`` is within the active hours."""
        local = now.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        if self.start_minute <= self.end_minute:
            return self.start_minute <= minute < self.end_minute
        return minute >= self.start_minute or minute < self.end_minute

    def due(self, now: datetime, last: datetime) -> datetime | None:
        """The tick that is to fire now, or None; ``last`` is the one that fired last."""
        newest = self.newest(now)
        if last - now > self.interval:
            last = newest - self.interval
        return newest if newest > last and self.is_open(now) else None

    def open_between(self, since: datetime, until: datetime, *, at_most: int) -> int:
        """Count the ticks after ``since`` up to ``until`` in active hours, at most ``at_most``."""
        count, looked_at, instant = 0, 0, self.newest(until)
        while instant > since and count < at_most and looked_at < 100_000:
            count += self.is_open(instant)
            looked_at += 1
            instant -= self.interval
        return count


def tick_name(instant: datetime) -> str:
    """The permanent name of a tick: its instant in UTC, with milliseconds only if there are some."""
    precision = "milliseconds" if instant.microsecond else "seconds"
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def parse_instant(name: str | None) -> datetime | None:
    """The instant that `tick_name` named; None for anything else."""
    try:
        instant = datetime.fromisoformat(name or "")
    except ValueError:
        return None
    return instant.astimezone(UTC) if instant.tzinfo is not None else None


_MAX_CHARS = 16_000


def tick_message(
    instant: datetime,
    text: str,
    *,
    name: str = "heartbeat",
    account: str = "heartbeat",
    watched: bool = False,
) -> InboundMessage:
    """Build a tick's message, the same for an instant and text; ``watched``: a watch found the text."""
    return InboundMessage(
        channel=name,
        account=account,
        native_id=tick_name(instant),
        session=SessionKey(name, "owner"),
        sender=Sender(address="heartbeat", verified=True),
        text=text,
        received_at=instant,
        kind="tick",
        context=MessageContext(watched=watched),
    )


def question_text(local: datetime, checklist: str, told: Sequence[str] = ()) -> str:
    """The question to the model."""
    order = (
        f"This is the regular check-in of {local:%A, %Y-%m-%d %H:%M %z}; no person wrote it.\nGo through "
        "what follows and do what is due. Write to the owner only if something needs their attention; "
        f"otherwise answer with nothing but {SILENCE}."
    )
    parts = [order]
    parts += [f"Seen just now:\n{one}" for one in told]
    if checklist.strip():
        parts.append(f"HEARTBEAT.md:\n{_shortened(checklist.strip())}")
    return "\n\n".join(parts)


def _shortened(text: str) -> str:
    if len(text) <= _MAX_CHARS:
        return text
    return f"{text[:_MAX_CHARS]}\n[The rest of the file was left out: it has {len(text)} characters.]"
