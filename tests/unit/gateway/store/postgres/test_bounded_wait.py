"""How long the event loop waits for a call that blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agent_core.state_folder import StateUnreachable
from gateway.store.postgres.bounded_wait import BeforeCall, BoundedWait

SHORT_S = 0.05
PLENTY_S = 30.0


class SlowServer:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def ask(self, wanted: BeforeCall, what: str = "first") -> str:
        wanted()
        self.asked.append(what)
        assert self.answers.wait(PLENTY_S)
        return what


@pytest.fixture
def server() -> Iterator[SlowServer]:
    made = SlowServer()
    yield made
    made.answers.set()


def ended(moment: BoundedWait) -> None:
    thread = moment._late
    assert thread is not None
    thread.join(PLENTY_S)


async def test_what_comes_in_time_is_handed_on(server: SlowServer):
    """A result as well as an error."""
    server.answers.set()
    moment = BoundedWait("db")
    assert moment.wait_for(server.ask, PLENTY_S) == "first"

    def fails(wanted: BeforeCall) -> None:
        wanted()
        raise TimeoutError("of the call itself")

    with pytest.raises(TimeoutError, match="of the call itself"):
        moment.wait_for(fails, PLENTY_S)


async def test_who_has_not_answered_is_not_asked_again_before_that(server: SlowServer):
    """The event loop waits once, and is refused at once from then on, until the call has ended."""
    moment = BoundedWait("db")
    with pytest.raises(StateUnreachable, match="within"):
        moment.wait_for(server.ask, SHORT_S)
    with pytest.raises(StateUnreachable, match="still"):
        moment.wait_for(lambda wanted: server.ask(wanted, "second"), PLENTY_S)
    assert server.asked == ["first"]
    server.answers.set()
    ended(moment)
    assert moment.wait_for(lambda wanted: server.ask(wanted, "third"), PLENTY_S) == "third"


async def test_what_was_late_before_it_began_never_begins(server: SlowServer):
    """It waits for another thread's call; when that has ended, nobody wants it any more."""
    moment, lock = BoundedWait("db"), threading.Lock()
    server.answers.set()
    with lock:

        def behind(wanted: BeforeCall) -> str:
            with lock:
                return server.ask(wanted)

        with pytest.raises(StateUnreachable):
            moment.wait_for(behind, SHORT_S)
    ended(moment)
    assert server.asked == []


def test_a_thread_without_an_event_loop_waits_as_long_as_it_takes(server: SlowServer):
    """Nobody else is held up by it, so no limit is needed; a second thread lets the server answer."""
    timer = threading.Timer(4 * SHORT_S, server.answers.set)
    timer.start()
    assert BoundedWait("db").wait_for(server.ask, SHORT_S) == "first"
    timer.join()
