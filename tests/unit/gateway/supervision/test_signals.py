"""What processes tell each other besides names of accounts."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import SessionKey
from gateway.queue.model import Stopped
from gateway.supervision.signals import WORK, Signals, Told

SIGNALS = Signals("a secret of the database")
_PARTS = st.text(min_size=1, max_size=20)
_SESSIONS = st.builds(SessionKey, _PARTS, _PARTS, st.none() | _PARTS)


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.told = Told(
            SIGNALS,
            work=lambda name: self.calls.append(("work", name)),
            stopped=self.calls.append,
            typing=lambda session, on: self.calls.append(("typing", session, on)),
            grown=lambda session: self.calls.append(("grown", session)),
        )


@given(_SESSIONS, st.booleans())
def test_what_is_told_is_what_is_heard(session: SessionKey, on: bool) -> None:
    """Whatever is in the name of a conversation."""
    heard, stop = Heard(), Stopped(session, "12-abcdef01", "withdrawn")
    for text in (SIGNALS.typing(session, on), SIGNALS.grown(session), SIGNALS.stopped(stop)):
        heard.told.hear(text)
    assert heard.calls == [("typing", session, on), ("grown", session), stop]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "*",
        WORK,
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


def test_who_is_not_asked_for_a_hint_does_not_even_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has nobody to show typing to, a daemon with accounts is told of no stop."""
    calls: list[object] = []
    session = SessionKey("matrix", "!r:hs")
    stop = SIGNALS.stopped(Stopped(session, "1-a", "left"))
    shown, grown = SIGNALS.typing(session, True), SIGNALS.grown(session)
    monkeypatch.setattr(Signals, "read", lambda _, text: calls.append(text))
    worker = Told(SIGNALS, work=calls.append, stopped=calls.append)
    daemon = Told(SIGNALS, work=calls.append, typing=lambda *_: None, grown=calls.append)
    for told, others in ((worker, (shown, grown)), (daemon, (stop,))):
        for text in others:
            told.hear(text)
    assert calls == []


def test_no_other_role_on_the_server_reads_or_writes_them() -> None:
    """Each hears them, and may send some; the name of a conversation, of a person perhaps, stands in none."""
    session, stop = (
        SessionKey("email", "bot@mail.test", "ann@mail.test"),
        Stopped(SessionKey("a", "b"), "1-a", "left"),
    )
    heard, told = Heard(), [SIGNALS.typing(session, True), SIGNALS.grown(session), SIGNALS.stopped(stop)]
    for text in told:
        content = base64.b64decode(text[1:])
        assert b"ann" not in content and b"1-a" not in content
        assert len(text) < 8000
    others = Signals("another secret")
    forged = ["~", "~!", "~AAAA", "stopped 1-a left a/b", others.stopped(stop), SIGNALS.stopped(stop)[:-8]]
    for text in forged:
        heard.told.hear(text)
    assert heard.calls == [("work", text) for text in forged]
