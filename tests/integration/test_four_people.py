"""
Four people, an owner, a second owner, an adult and a guest, talk at random on every channel, in private and in a
room. The model repeats every word that it is shown, so what it is shown of somebody else is seen by the wrong
one. No word of one person reaches another.
"""

from __future__ import annotations

import io
import random
import re
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_core.memory.scopes import OWNER
from agent_core.models import ToolResult
from agent_core.tools.effects import Effect
from gateway.turns import user_input
from tests.doubles.agent import StreamingModel, call
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.integration.gateway_world import Scenario, world

pytestmark = pytest.mark.integration

ROOM = "room"
PEOPLE: dict[str, dict[str, str]] = {
    "ann": {"matrix": "@ann:hs.test", "email": "ann@mail.test", "api": "@ann:hs.test"},
    "bob": {"matrix": "@bob:hs.test", "email": "bob@mail.test", "api": "@bob:hs.test"},
    "cid": {"matrix": "@cid:hs.test", "email": "cid@mail.test", "api": "cid@mail.test"},
    "dan": {"matrix": "@dan:hs.test", "email": "dan@mail.test", "api": "@dan:hs.test"},
}
SETTINGS: dict[str, Any] = {
    "owner": {"aliases": ["@ann:hs.test", "ann@mail.test"]},
    "people": {
        "bob": {"addresses": ["@bob:hs.test", "bob@mail.test"], "role": "owner", "language": "de"},
        "cid": {"addresses": ["@cid:hs.test", "cid@mail.test"], "persona": "Speak like a pirate."},
        "dan": {"addresses": ["@dan:hs.test", "dan@mail.test"], "role": "guest"},
    },
    "agents": {"consolidation_threshold": 14, "heartbeat": {"enabled": False}},
}
WORD = re.compile(r"\bq\d{4}[a-z]+\b")
"""A word as it is said here: its number, and whose it is (or ``room``)."""


MATERIAL = re.compile(r"<(?:conversation|summary)>\n")


class Parrot(StreamingModel):
    """Does what it is asked to do, and says every word that it is shown."""

    async def answer(self, messages, tools):
        names = {tool.name for tool in tools}
        shown = " ".join(dict.fromkeys(WORD.findall("\n".join(each.content for each in messages))))
        last = messages[-1]
        new = " ".join(WORD.findall(last.content)[-1:])
        if MATERIAL.search(last.content):
            yield f"They have said {shown}."
        elif last.role == "tool":
            yield f"The tool says {shown}"
        elif "remember" in last.content.rpartition("\n")[2] and "memory_write" in names:
            yield call("memory_write", content=f"- known: {shown} {new}")
        elif "find" in last.content.rpartition("\n")[2] and "search_history" in names:
            yield call("search_history", query="plum")
        elif "list jobs" in last.content.rpartition("\n")[2] and "schedule" in names:
            yield call("schedule", action="list")
        elif "tell" in last.content.rpartition("\n")[2] and "tell" in names:
            yield call("tell", what="nothing")
        else:
            yield f"I see {shown}."


class Tell:
    name, description, effect = "tell", "Tell somebody.", Effect.SEND
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"what": {"type": "string"}}}

    async def execute(self, **_: Any) -> ToolResult:
        return ToolResult(content="told")


SAID = ("plum {word}", "plum {word}", "plum remember {word}", "plum find", "list jobs", "please tell them")
COMMANDS = (
    *(
        "!memory",
        "!search plum",
        "!export",
        "!did",
        "!remind in 2h plum {word}",
        "!remind",
        "!jobs",
        "!status",
    ),
    *(
        "!approve",
        "!grants",
        "!usage",
        "!undo",
        "!new",
        "!retry",
        "!help",
        "!stop",
        "!continue",
        "!export me",
    ),
    *("!forget me", "!allow", "!persona", "!files", "!memory undo"),
)


@dataclass
class Talk:
    """A home, its three channels, and what was seen by whom."""

    home: Scenario
    servers: dict[str, LoopbackServer]
    root: Path
    dice: random.Random
    number: int = 0
    looked: dict[str, int] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=dict)
    """The words that each person, or the room, was shown, by whose they are."""
    crossings: list[str] = field(default_factory=list)

    async def turn(self) -> None:
        """Somebody says something somewhere, and reads the answer."""
        name = self.dice.choice(list(PEOPLE))
        channel = self.dice.choice(list(self.servers))
        in_room = channel == "matrix" and self.dice.random() < 0.2
        place = ROOM if in_room else f"dm-{PEOPLE[name][channel]}"
        self.number += 1
        word = f"q{self.number:04}{'room' if in_room else name}"
        text = self.dice.choice(SAID if self.dice.random() < 0.6 else COMMANDS).format(word=word)
        server = self.servers[channel]
        before = len(server.seen(place))
        server.say(PEOPLE[name][channel], text, conversation=place)
        await server.answers(before + 1, conversation=place)
        self.look(text)

    def look(self, text: str) -> None:
        """Note what is new in each conversation, and every word that does not belong there."""
        for channel, server in self.servers.items():
            new = server.delivered[self.looked.get(channel, 0) :]
            self.looked[channel] = len(server.delivered)
            for one in new:
                reader = self.reader(channel, one.conversation)
                for word in self.words(one):
                    begins = word.lstrip("q0123456789")  # a list may have cut it off
                    whose = next(name for name in (*PEOPLE, "room") if name.startswith(begins))
                    self.seen.setdefault(reader, set()).add(whose)
                    if whose not in {reader, "room"} or (reader == "room" and whose != "room"):
                        self.crossings.append(f"{reader} was shown {word} after {text!r}: {one.text[:200]}")

    def reader(self, channel: str, conversation: str) -> str:
        """Who reads a conversation."""
        if conversation == ROOM:
            return "room"
        return next(name for name, at in PEOPLE.items() if f"dm-{at[channel]}" == conversation)

    def words(self, message: Delivered) -> list[str]:
        """The words of a message and its files."""
        texts = [message.text]
        for file in message.attachments:
            (path,) = (self.root / "attachments").rglob(f"*{file.sha256[4:]}*")
            content = path.read_bytes()
            if content.startswith(b"PK"):
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    texts += [archive.read(name).decode("utf-8", "replace") for name in archive.namelist()]
            else:
                texts.append(content.decode("utf-8", "replace"))
        return [word for text in texts for word in WORD.findall(text)]


@asynccontextmanager
async def talk(root: Path, seed: int) -> AsyncIterator[Talk]:
    servers = {name: LoopbackServer() for name in ("matrix", "email", "api")}
    servers["matrix"].groups.add(ROOM)
    channels = {
        name: (LoopbackChannel(server, name=name, email_style=name == "email"), "each")
        for name, server in servers.items()
    }
    allow = dict.fromkeys(("matrix", "email"), ("*",))
    async with world(
        root,
        settings=SETTINGS,
        channels=channels,
        allow_from=allow,
        models={"demo": Parrot()},
        tools=[Tell()],
    ) as home:
        yield Talk(home, servers, root, random.Random(seed))


@pytest.mark.parametrize(("seed", "turns"), [(1, 500), pytest.param(2, 60, marks=pytest.mark.smoke)])
async def test_no_word_of_one_person_reaches_another(tmp_path: Path, seed: int, turns: int) -> None:
    """Each is shown words of their own, also of their other addresses, so the test sees what is shown."""
    async with talk(tmp_path, seed) as found:
        for _ in range(turns):
            await found.turn()
        assert found.crossings == []
        assert set(PEOPLE) | {"room"} <= found.seen.keys()
        assert all(name in found.seen[name] for name in PEOPLE)


def all_are_one(*_: Any, **__: Any) -> Any:
    return OWNER


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("what", "instead"),
    [("scope_for", all_are_one)],
    ids=["one memory for all"],
)
async def test_a_word_that_reaches_another_is_noticed(
    tmp_path: Path, monkeypatch: Any, what: str, instead: Callable[..., Any]
) -> None:
    """The control."""
    monkeypatch.setattr(user_input, what, instead)
    async with talk(tmp_path, 3) as found:
        for _ in range(80):
            await found.turn()
            if found.crossings:
                break
        assert found.crossings
