"""What processes tell each other besides names of accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import SessionKey
from gateway.queue.model import Stopped
from gateway.supervision import signals
from gateway.supervision.signals import Told

_PARTS = st.text(min_size=1, max_size=20)
_SESSIONS = st.builds(SessionKey, _PARTS, _PARTS, st.none() | _PARTS)


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.told = Told(
            work=lambda name: self.calls.append(("work", name)),
            stopped=self.calls.append,
            typing=lambda session, on: self.calls.append(("typing", session, on)),
            grown=lambda session: self.calls.append(("grown", session)),
        )


@given(_SESSIONS, st.booleans())
def test_what_is_told_is_what_is_heard(session: SessionKey, on: bool) -> None:
    """Whatever is in the name of a conversation."""
    heard, stop = Heard(), Stopped(session, "12-abcdef01", "withdrawn")
    for text in (signals.typing(session, on), signals.grown(session), signals.stopped(stop)):
        heard.told.hear(text)
    assert heard.calls == [("typing", session, on), ("grown", session), stop]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "*",
        signals.WORK,
        "matrix",
        "typing",
        "grown",
        "stopped",
        "typing x",
        "stopped 1 2",
        "grown a/b/c/d",
    ],
)
def test_everything_else_may_be_work(text: str | None) -> None:
    """Names of accounts, also of one that is called like a signal, and what only a later version knows."""
    heard = Heard()
    heard.told.hear(text)
    assert heard.calls == [("work", text)]


def test_who_is_not_asked_for_a_hint_does_nothing() -> None:
    """A worker has nobody to show typing to, a daemon with accounts is told of no stop."""
    calls: list[object] = []
    told, session = Told(work=calls.append), SessionKey("matrix", "!r:hs")
    for text in (
        signals.typing(session, True),
        signals.grown(session),
        signals.stopped(Stopped(session, "1-a", "left")),
    ):
        told.hear(text)
    assert calls == []
