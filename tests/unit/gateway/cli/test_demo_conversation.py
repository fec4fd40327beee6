"""The demo's conversation, with servers and daemon played by a double."""

from __future__ import annotations

import time
from email.message import EmailMessage
from types import SimpleNamespace

import pytest

from devservers.errors import RequestFailed, WaitedInVain
from devservers.matrix_peer import RoomEvent
from gateway.cli.demo import _say
from gateway.cli.demo.conversation import TOUR, _Talk, converse


class Alice:
    """A peer whose room is written by the test."""

    def __init__(self):
        self.sent, self.pending, self.interrupt, self.refuse = [], [], False, False

    def say(self, text):
        self.pending.append(RoomEvent("!r", f"${text}", "m.room.message", "@bot:hs.test", {"body": text}))

    def send(self, room, text):
        if self.refuse:
            raise RequestFailed(500, "M_UNKNOWN", "broken")
        self.sent.append(text)
        if not self.interrupt:
            self.say(f"re: {text}")

    def sync(self, timeout_s):
        pass

    def wait_for_event(self, predicate, timeout_s):
        if self.interrupt and self.sent:
            self.interrupt = False
            raise KeyboardInterrupt
        for event in self.pending:
            if predicate(event):
                self.pending.remove(event)
                return event
        raise WaitedInVain("nothing")


class Double:
    def __init__(self):
        self.alice, self.room, self.kills = Alice(), "!r", 0
        self.page = "http://127.0.0.1:1/squids"
        self.synapse = SimpleNamespace(server_name="hs.test")
        self.daemon = SimpleNamespace(log_tail=lambda lines: "the log")
        answer = EmailMessage()
        answer["From"], answer["Subject"] = "bot", "Re"
        answer.set_content("by mail")
        self.mail = SimpleNamespace(address=lambda user: user, peer=lambda user: self.peer)
        self.peer = SimpleNamespace(send=lambda *_: "<1>", wait_for=lambda *_: answer)

    def status(self):
        return {"channels": {"matrix": {"state": "up"}}, "work": {"inbox": {"settled": 1}, "outbox": {}}}

    def kill_daemon(self):
        self.kills += 1

    def wait_until_ready(self, say):
        pass


@pytest.fixture
def demo():
    double = Double()
    # The bot's own joining is no answer.
    double.alice.pending.append(RoomEvent("!r", "$j", "m.room.member", "@bot:hs.test", {}))
    return double


def test_after_an_interruption_each_answer_still_stands_under_its_question(demo, capsys):
    """The late answer does not make every later one late."""
    talk = _Talk(demo, typing=False)
    demo.alice.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        talk.read_out(["one"])
    demo.alice.say("re: one")
    assert talk.read_out(["two"]) == 0
    assert talk.read_out(["three"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if ">" in line]
    assert shown == [
        "alice> one",
        "alice> two",
        "bot> re: one",
        "bot> re: two",
        "alice> three",
        "bot> re: three",
    ]


def test_an_empty_line_shows_what_has_come_late(demo, capsys):
    """Without asking anything."""
    talk = _Talk(demo, typing=False)
    demo.alice.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        talk.read_out(["one"])
    demo.alice.say("re: one")
    talk.read_out([""])
    assert "bot> re: one" in capsys.readouterr().out
    assert demo.alice.sent == ["one"]


def test_a_reminder_is_no_answer_to_the_next_question(demo, capsys):
    """A proactive message stands before the question, which gets its own answer."""
    talk = _Talk(demo, typing=False)
    assert talk.read_out(["remind me"]) == 0
    demo.alice.say("stretch")
    assert talk.read_out(["one", "two"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if ">" in line]
    assert shown[2:] == ["alice> one", "bot> stretch", "bot> re: one", "alice> two", "bot> re: two"]


def test_a_reminder_is_shown_while_nobody_asks(demo, capsys, monkeypatch):
    """At the prompt as well, without a key being pressed; then the person goes on typing."""
    shown = []

    def person(prompt):
        demo.alice.say("stretch")
        deadline = time.monotonic() + 30
        while demo.alice.pending[1:] or "stretch" not in "".join(shown):
            assert time.monotonic() < deadline, "it was not shown"
            time.sleep(0.02)
            shown.append(capsys.readouterr().out)
        return "/quit"

    monkeypatch.setattr("builtins.input", person)
    assert _Talk(demo, typing=True).prompt() == 0
    assert "(proactive)" in "".join(shown)


def test_trouble_is_told_with_the_end_of_the_log_and_the_talk_goes_on(demo, capsys):
    """The exit code remembers it."""
    demo.alice.refuse = True
    talk = _Talk(demo, typing=False)
    assert talk.read_out(["hello", "/status", "/kill"]) == 1
    told = capsys.readouterr().out
    assert "M_UNKNOWN" in told and "the log" in told
    assert "matrix     up" in told
    assert demo.kills == 1


def test_the_tour_is_taken_when_it_is_wished_for_whatever_the_standard_input_has(demo, capsys):
    """`--tour` never waits for input."""
    assert converse(demo, tour=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("alice> ") for line in lines if line.startswith("alice> ")] == list(TOUR)


def test_a_task_is_given_and_its_question_is_answered_with_yes(demo, capsys):
    """The word on the yes comes first, then what came of it; without a question nothing is said."""
    talk = _Talk(demo, typing=False)
    assert talk.read_out(["/yes"]) == 0
    assert "asked nothing" in capsys.readouterr().out
    answers = iter([["I need your approval: `!approve a1b2c3d`"], ["approved", "33 words"]])

    def send(room, text):
        demo.alice.sent.append(text)
        for answer in next(answers):
            demo.alice.say(answer)

    demo.alice.send = send
    assert talk.read_out(["/task", "/yes"]) == 0
    assert demo.alice.sent == [
        "read http://127.0.0.1:1/squids into squids.txt and count its words",
        "!approve a1b2c3d",
    ]
    told = capsys.readouterr().out
    assert told.index("bot> approved") < told.index("bot> 33 words")


def test_a_voice_message_is_said_by_espeak(monkeypatch, capsys):
    """`/voice` waits for the answer like any message; without espeak-ng it says what to install, and owes nothing."""
    demo = Double()
    spoken = []

    def speak(alice, room, text):
        spoken.append((room, text))
        alice.say(f"heard: {text}")

    monkeypatch.setattr("gateway.cli.demo.tour_material.speak", speak)
    talk = _Talk(demo, typing=False)
    assert talk.read_out(["/voice feed the axolotl"]) == 0
    assert spoken == [("!r", "feed the axolotl")]
    assert "heard: feed the axolotl" in capsys.readouterr().out

    monkeypatch.undo()
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert talk.read_out(["/voice again"]) == 1
    assert "apt install espeak-ng" in capsys.readouterr().out
    assert not talk._owed


def test_without_espeak_a_sentence_says_so_and_no_log(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not _Talk(Double(), typing=False)._handle("/voice hello")
    said = capsys.readouterr().out
    assert "espeak-ng is not installed" in said
    assert "the log" not in said


def test_a_line_of_progress_and_its_end_are_one_write(monkeypatch):
    """Two servers start at a time, each with lines of its own: nothing comes between a line and its end."""
    pieces = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=pieces.append, flush=lambda: None))
    _say("installing the Matrix server")
    assert pieces == ["· installing the Matrix server\n"]
