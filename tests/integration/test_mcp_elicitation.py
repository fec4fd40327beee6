"""What a server wants to know during a call is asked of the person, once, and of nobody else."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Audience, InboundMessage, OutboundKind, SessionKey
from gateway.errors import NotFound
from gateway.operations.decision_operations import CallEnded
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import render_approvals
from gateway.system.clock import SystemClock
from gateway.turns.questions import server_questions
from gateway.turns.questions.server_questions import OpenQuestions
from tests.command_line import squidbot
from tests.doubles.loopback import Delivered
from tests.inbound import inbound
from tests.integration.gateway_world import Scenario
from tests.integration.test_mcp_hostile import alive
from tests.integration.test_mcp_turns import ANN, BOB, Caller, house, receipts, server

pytestmark = pytest.mark.integration
PLACE = f"dm-{ANN}"
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _by_signals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer wakes whoever waits for it: nobody looks for it."""
    monkeypatch.setattr(server_questions, "_CHECK_EVERY_S", 3600)


def form(**properties: Any) -> str:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return json.dumps({"mode": "form", "message": "Which one?", "requestedSchema": schema})


def asking(root: Path, behaviour: str = "elicits", *more: str, **settings: Any) -> dict[str, Any]:
    known = {"effects": {"echo": "write_workspace"}, "trust": "own", **settings}
    return server(behaviour, root / "calls", *more, **known)


async def question(one: Scenario, place: str = PLACE, count: int = 1) -> tuple[Delivered, str]:
    with anyio.fail_after(60):
        while len(found := [each for each in one.server.seen(place) if each.text.startswith("**a")]) < count:
            await anyio.sleep(0.02)
    named = re.match(r"\*\*(a[0-9a-f]{6})\*\*", found[-1].text)
    assert named is not None
    return found[-1], named[1]


async def reply(one: Scenario, place: str = PLACE) -> str:
    """The model's answer."""
    with anyio.fail_after(60):
        while not (found := [each.text for each in one.server.seen(place) if each.text.startswith("so:")]):
            await anyio.sleep(0.02)
    return found[-1]


def in_reply(notice: Delivered, text: str, person: str = ANN) -> InboundMessage:
    return inbound(
        SessionKey("matrix", PLACE),
        person,
        text,
        f"$reply-{text}-{person}",
        received_at=SystemClock().now(),
        audience=Audience.DIRECT,
        context={"outbound": notice.key},
    )


async def test_a_text_is_answered_by_a_command_and_reaches_the_server_once(tmp_path: Path) -> None:
    """The question shows whose words it has, whole; others cannot answer it, and what does not fit is said."""
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path)) as one:
        one.server.say(ANN, "please bad__echo")
        notice, name = await question(one)
        assert notice.kind is OutboundKind.NOTICE
        assert "the server `bad`" in notice.text
        assert "its words, not mine" in notice.text
        assert "Where to?‹U+202E›" in notice.text
        assert "wants: city" in notice.text
        assert name in (await one.asked(f"!answer {name} Rome", person=BOB)).text
        assert "Nothing waits for you" in one.server.seen(f"dm-{BOB}")[-1].text
        assert "needs more than a yes" in (await one.asked(f"!approve {name}", person=ANN)).text
        assert "is answered" in (await one.asked(f"!answer {name} Berlin", person=ANN)).text
        said = await reply(one)
        assert '"action": "accept"' in said
        assert "Berlin" in said
        assert "which was answered" in said
        assert (tmp_path / "calls").read_text() == "hello\n"
        (receipt,) = await receipts(one)
        assert receipt.outcome.value == "done"
        late = (await one.asked(f"!answer {name} Rome", person=ANN)).text
        assert "was answered before. This changes nothing." in late


async def test_a_reply_answers_a_text_and_anything_else_takes_the_question_back(tmp_path: Path) -> None:
    """A message that is no reply never reaches a server as a free text."""
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path)) as one:
        one.server.say(ANN, "please bad__echo")
        notice, _ = await question(one)
        await one.hand_over(in_reply(notice, "Berlin"))
        assert "Berlin" in await reply(one)

        one.server.say(ANN, "please bad__echo")
        _, name = await question(one, count=2)
        one.server.say(ANN, "what a nice day")
        with anyio.fail_after(60):
            while not [each for each in one.server.seen(PLACE) if "wrote something else" in each.text]:
                await anyio.sleep(0.02)
        assert not any(
            "nice day" in each.text for each in one.server.seen(PLACE) if each.text.startswith("so:")
        )
        with anyio.fail_after(60):
            while one.server.seen(PLACE)[-1].text != "echo":  # and is a question like any other
                await anyio.sleep(0.02)
        assert "withdrawn" in (await one.asked(f"!answer {name} Rome", person=ANN)).text


@pytest.mark.parametrize(
    ("field", "word", "said"),
    [
        ({"type": "boolean"}, "no", '{\\"x\\": false}'),
        ({"type": "string", "enum": ["red", "green"]}, "Green", '{\\"x\\": \\"green\\"}'),
        ({"type": "integer"}, "7", '{\\"x\\": 7}'),
        ({"type": "integer"}, "no", "decline"),
    ],
)
async def test_a_word_answers_a_closed_question(
    tmp_path: Path, field: dict[str, Any], word: str, said: str
) -> None:
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, "elicits", form(x=field))) as one:
        one.server.say(ANN, "please bad__echo")
        await question(one)
        one.server.say(ANN, word)
        assert said.replace("\\", "") in (await reply(one)).replace("\\", "")


async def test_lines_that_name_all_that_is_wanted_need_no_reply(tmp_path: Path) -> None:
    """What does not fit is told, and the question stays. The control is a text that names a part of it."""
    wanted = form(city={"type": "string"}, nights={"type": "integer", "maximum": 30})
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, "elicits", wanted)) as one:
        one.server.say(ANN, "please bad__echo")
        await question(one)
        assert "nights" in (await one.asked("city: Berlin\nnights: 99", person=ANN)).text
        one.server.say(ANN, "City: Berlin; nights: 3")
        said = await reply(one)
        assert '"city": "Berlin"' in said
        assert '"nights": 3' in said

        one.server.say(ANN, "please bad__echo")
        await question(one, count=2)
        one.server.say(ANN, "city: Berlin")
        with anyio.fail_after(60):
            while not [each for each in one.server.seen(PLACE) if "wrote something else" in each.text]:
                await anyio.sleep(0.02)


async def test_a_signal_that_is_lost_costs_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenQuestions, "_wake", lambda *_: None)
    monkeypatch.setattr(server_questions, "_CHECK_EVERY_S", 0.2)
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path)) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        one.server.say(ANN, f"!answer {name} Berlin")
        assert "Berlin" in await reply(one)


def desk(one: Scenario) -> OperationContext:
    built = one.built
    return OperationContext(built.store, built.memory, questions=built.store.approvals, waiting=built.waiting)


async def test_the_operator_answers_with_words_and_not_with_a_yes(tmp_path: Path) -> None:
    """What is asked is listed whole; a yes is no answer to a form, and what does not fit is passed on to nobody."""
    wish = form(nights={"type": "integer", "title": "Nights"})
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, "elicits", wish)) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        [row] = (await desk(one).call("calls_list", {}))["rows"]
        assert (row["name"], row["tool"]) == (name, "bad")
        assert row["form"] == {
            "message": "Which one?",
            "address": "",
            "fields": [{"name": "nights", "wants": "a whole number. Nights"}],
        }
        shown = render_approvals([], [row])
        for line in ("Which one?", "nights: a whole number. Nights", f"squidbot inbox answer {name} VALUE"):
            assert line in shown
        assert "\x1b" not in render_approvals([], [{**row, "form": {**row["form"], "message": "\x1b[2J"}}])
        with pytest.raises(RequestInvalid, match=f"squidbot inbox answer {name}"):
            await desk(one).call("calls_decide", {"call": name, "yes": True})
        with pytest.raises(RequestInvalid, match="whole number"):
            await desk(one).call("calls_answer", {"call": name, "text": "yes"})
        with pytest.raises(NotFound):
            await desk(one).call("calls_answer", {"call": "a000000", "text": "3"})
        assert len((await desk(one).call("calls_list", {}))["rows"]) == 1
        done = await desk(one).call("calls_answer", {"call": name, "text": "3"})
        assert (done["changed"], done["call"]["verdict"]) == (True, "answered")
        assert '"nights": 3' in await reply(one)


@pytest.mark.parametrize(
    ("yes", "verdict", "action"), [(True, "answered", "accept"), (False, "declined", "decline")]
)
async def test_the_operator_says_yes_or_no_to_what_wants_no_more(
    tmp_path: Path, yes: bool, verdict: str, action: str
) -> None:
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, "elicits", form())) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        done = await desk(one).call("calls_decide", {"call": name, "yes": yes, "why": "so"})
        assert (done["changed"], done["call"]["verdict"]) == (True, verdict)
        assert f'"action": "{action}"' in await reply(one)


async def test_a_no_of_the_operator_declines_a_form(tmp_path: Path) -> None:
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path)) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        await desk(one).call("calls_decide", {"call": name, "yes": False})
        said = await reply(one)
        assert '"action": "decline"' in said
        assert "the person said no" in said


async def test_nobody_is_told_that_an_answer_is_passed_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """As between a restart and the moment at which the turn is taken up again; by whatever way it comes."""
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path)) as one:
        one.server.say(ANN, "please bad__echo")
        notice, name = await question(one)
        waiting = one.built.waiting
        assert isinstance(waiting, OpenQuestions)
        kept = dict(waiting._decided)
        waiting._decided.clear()
        assert f"`{name}` is closed" in (await one.asked(f"!answer {name} Berlin", person=ANN)).text
        assert f"`{name}` is closed" in (await one.asked(f"!reject {name}", person=ANN)).text
        await one.hand_over(in_reply(notice, "Berlin"))
        with anyio.fail_after(60):
            while sum(f"`{name}` is closed" in each.text for each in one.server.seen(PLACE)) < 3:
                await anyio.sleep(0.02)
        with pytest.raises(CallEnded):
            await desk(one).call("calls_answer", {"call": name, "text": "Berlin"})
        assert (await desk(one).call("calls_list", {}))["rows"] == []
        (found,) = await one.built.store.approvals.questions()
        assert found.verdict is None
        waiting._decided.update(kept)
        assert "is answered" in (await one.asked(f"!answer {name} Berlin", person=ANN)).text
        assert "Berlin" in await reply(one)


async def test_an_address_is_shown_whole_and_never_opened(tmp_path: Path) -> None:
    address = "https://pay.example.org/" + "x" * 300 + "?end=1"
    wish = json.dumps({"mode": "url", "message": "Pay here", "url": address, "elicitationId": "1"})
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, "elicits", wish)) as one:
        one.server.say(ANN, "please bad__echo")
        notice, _ = await question(one)
        assert address in notice.text
        assert "I do not open it" in notice.text
        one.server.say(ANN, "yes")
        assert '"action": "accept"' in await reply(one)


@pytest.mark.parametrize(
    ("behaviour", "more", "said"),
    [
        ("elicits", [form(password={"type": "string"})], "asks for a secret"),
        ("elicits", [form(x={"type": "object"})], "cannot be written"),
        ("elicits", [json.dumps({"mode": "url", "message": "?", "url": "javascript:x", "elicitationId": "1"})],
         "not one that I show"),
    ],
)  # fmt: skip
async def test_what_nobody_is_asked(tmp_path: Path, behaviour: str, more: list[str], said: str) -> None:
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, behaviour, *more)) as one:
        text = (await one.asked("please bad__echo", person=ANN)).text
        assert text.startswith("so:")
        assert said in text
        assert '"action": "decline"' in text


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [
        ("elicits_often", json.dumps(["accept"] * 3 + ["decline"] * 3)),
        ("elicits_flood", json.dumps({"decline": 97, "accept": 3})),
    ],
)
async def test_a_server_asks_a_few_times_at_most(tmp_path: Path, behaviour: str, found: str) -> None:
    """Three questions of one call; the others are declined without anybody seeing them."""
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, behaviour)) as one:
        one.server.say(ANN, "please bad__echo")
        for count in (1, 2, 3):
            _, name = await question(one, count=count)
            one.server.say(ANN, f"!answer {name} Berlin")
        said = await reply(one)
        asked = [each for each in one.server.seen(PLACE) if each.text.startswith("**a")]
        assert len(asked) == 3
        assert found in said
        others = await one.asked("hello", person=BOB)
        assert others.text == "echo"


@pytest.mark.parametrize(
    ("behaviour", "said"), [("elicits_on", "hello"), ("elicits_dies", "The outcome is unknown")]
)
async def test_a_question_ends_with_its_call(tmp_path: Path, behaviour: str, said: str) -> None:
    """A server that goes on, or dies, before it was answered: the person is told that it is over."""
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, behaviour)) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        assert said in await reply(one)
        closed = [each.text for each in one.server.seen(PLACE) if f"`{name}` is closed" in each.text]
        assert len(closed) == 1
        assert (tmp_path / "calls").read_text() == "hello\n"


async def test_time_in_which_a_person_is_asked_does_not_count(tmp_path: Path) -> None:
    """A call with a limit of a second survives two of thinking."""
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path, timeout_s=1)) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        await anyio.sleep(2)
        one.server.say(ANN, f"!answer {name} Berlin")
        assert "Berlin" in await reply(one)


_DAEMON = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.integration.test_mcp_elicitation import asking, question, house, Caller, ANN
async def main():
    root = Path(sys.argv[2])
    async with house(root / "home", Caller(), bad=asking(root)) as one:
        one.server.say(ANN, "please bad__echo")
        _, name = await question(one)
        print("asked", name, flush=True)
        await anyio.sleep(600)
anyio.run(main)
"""


async def test_a_call_that_dies_with_the_process_is_unknown_and_its_question_closed(tmp_path: Path) -> None:
    """It is not made again, and whoever answers after the restart is told that the call is gone."""
    child = subprocess.Popen(
        [sys.executable, "-c", _DAEMON, str(_ROOT), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        name = next(line for line in iter(child.stdout.readline, "") if line.startswith("asked")).split()[1]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert not alive(child.pid)
    listed = await anyio.to_thread.run_sync(squidbot, tmp_path / "home", "inbox", "list", "--held")
    assert name not in listed.stdout
    late = await anyio.to_thread.run_sync(squidbot, tmp_path / "home", "inbox", "answer", name, "Rome")
    assert late.returncode == 1
    assert "nothing was sent to its server" in late.stderr
    async with house(tmp_path / "home", Caller(), bad=asking(tmp_path)) as one:
        assert "outcome of this call is unknown" in await reply(one)
        seen = [each.text for each in one.server.seen(PLACE)]
        assert sum(f"`{name}` is closed" in each for each in seen) == 1
        one.server.say(
            ANN, "please bad__echo", native_id="m1"
        )  # the first one, which this server does not know
        one.server.say(ANN, f"!answer {name} Rome", native_id="later")
        with anyio.fail_after(60):
            while sum(f"`{name}` is closed" in each.text for each in one.server.seen(PLACE)) < 2:
                await anyio.sleep(0.02)
        assert (tmp_path / "calls").read_text() == "hello\n"
        (receipt,) = await receipts(one)
        assert receipt.outcome.value == "unknown"
