"""
Ten everyday tasks in one encrypted room, at a real homeserver, by a model that does what its person says: how often
the person is asked, whether that rings, and whether it fits a phone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, Synapse
from devservers.provider import ProviderServer, ServerInThread
from devservers.transcription import TranscriptionServer
from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_matrix_media import encrypted_file
from tests.integration.test_questions_ring import rings
from tests.integration.test_voice_messages import voice_event
from tests.pictures import png
from tests.sounds import ogg_opus

PHONE_COLUMNS, PHONE_LINES = 64, 14
_PAGE = b"<title>Squids</title><p>Squids have ten arms.</p>"


class Page(ServerInThread):
    """A web server with one page."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(_PAGE)))
                self.end_headers()
                self.wfile.write(_PAGE)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(Handler)
        self.url = self.api_base.removesuffix("v1") + "squids"


def tasks(page: str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """What the person writes, and the calls with which the model does it."""
    return {
        "hello, who are you?": [],
        "write milk and bread into list.txt": [
            ("write_file", {"path": "list.txt", "content": "milk and bread"})
        ],
        "what is in list.txt?": [("read_file", {"path": "list.txt"})],
        "remind me tomorrow at 9 to call Bob": [
            ("schedule", {"action": "add", "kind": "remind", "at": "tomorrow at 9", "text": "call Bob"})
        ],
        "remember that I like green tea": [("memory_write", {"content": "Likes green tea."})],
        "what did I say about tea?": [("search_history", {"query": "tea like drink green favourite"})],
        f"read {page} and save it as squids.txt": [
            ("web_fetch", {"url": page}),
            ("write_file", {"path": "squids.txt", "content": "Squids have ten arms."}),
        ],
        "thank you!": [],
        "remind me in 2 hours to drink water": [
            ("schedule", {"action": "add", "kind": "remind", "in_minutes": 120, "text": "drink water"})
        ],
        "write buy stamps into errands.txt": [
            ("write_file", {"path": "errands.txt", "content": "buy stamps"})
        ],
    }


class HonestModel(ProviderServer):
    """Does the calls of the newest request one after the other, then says so."""

    def __init__(self, plan: Mapping[str, list[tuple[str, dict[str, Any]]]]) -> None:
        super().__init__("/chat/completions")
        self.plan_of = plan

    def right_answer(self, body: Mapping[str, Any]) -> tuple[bytes, str]:
        """The next step."""
        messages = body["messages"]
        newest = max((at for at, one in enumerate(messages) if one["role"] == "user"), default=0)
        said = json.dumps(messages[newest]["content"], ensure_ascii=False)
        said = re.sub(r"<remembered>.*?</remembered>", "", said)  # it asks nothing
        calls = next((calls for text, calls in self.plan_of.items() if text in said), [])
        done = sum(one["role"] == "tool" for one in messages[newest:])
        message: dict[str, Any] = {"role": "assistant", "content": self.closing_words(said, len(calls))}
        finish = "stop"
        if done < len(calls):
            name, arguments = calls[done]
            call = {"name": name, "arguments": json.dumps(arguments)}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"index": 0, "id": f"call_{newest}_{done}", "type": "function", "function": call}
                ],
            }
            finish = "tool_calls"
        usage = {"prompt_tokens": 900, "completion_tokens": 20, "total_tokens": 920}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return json.dumps(
                {"model": "honest", "choices": [choice], "usage": usage}
            ).encode(), "application/json"
        chunks = [
            {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": usage},
        ]
        stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return f"{stream}data: [DONE]\n\n".encode(), "text/event-stream"

    def closing_words(self, said: str, calls: int) -> str:
        """What it says at the end of what was ``said``."""
        return f"Done: {calls} of {calls}."

    def was_given(self, body: Mapping[str, Any]) -> None:
        """Nothing is counted."""


@pytest.fixture
def page() -> Iterator[str]:
    with Page() as server:
        yield server.url


@pytest.fixture
def ears() -> Iterator[str]:
    with TranscriptionServer() as server:
        yield server.api_base


def settings(synapse: Synapse, bot: Credentials, owner: str, api_base: str, ears: str) -> dict[str, Any]:
    return {
        "owner": {"aliases": [owner]},
        "llm": {
            "providers": {
                "own": {"api_base": api_base, "api_key": "k"},
                "ears": {"api_base": ears, "api_key": "k"},
            },
            "models": {"honest": {"model": "openai/honest", "provider": "own"}},
            "pools": {"main": ["honest"]},
            "default_pool": "main",
        },
        "agents": {"heartbeat": {"enabled": False}},
        "voice": {"transcribe": {"provider": "ears", "model": "openai/whisper-1"}},
        "tools": {"web": {"allow_private": ["127.0.0.0/8"]}},
        "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password)},
    }


class Room:
    """The owner's phone, and what it has been asked."""

    def __init__(self, daemon: Daemon, phone: SecretPeer, bot: str) -> None:
        self._daemon, self._phone, self._bot = daemon, phone, bot
        self.id = phone.create_room(bot)
        daemon.wait_until(lambda: bot in phone.peer.members(self.id))
        self.questions: list[dict[str, Any]] = []

    def said(self) -> list[dict[str, Any]]:
        found = self._phone.read(self.id)
        assert all(kind == "m.room.encrypted" for kind, _ in found)
        return [
            content for _, content in found if "m.relates_to" not in content or "m.new_content" not in content
        ]

    def ask(self, text: str, answer: Callable[[dict[str, Any]], None], **content: Any) -> None:
        """Write a line, or post a file; answer each question until it is done."""
        before = len(self.said())
        self._phone.send(self.id, text, to=self._bot, **content)

        def news() -> list[dict[str, Any]]:
            return self.said()[before:]

        def is_done() -> bool:
            for one in news():
                if "!approve" in one["body"] and one not in self.questions:
                    self.questions.append(one)
                    answer(one)
            return any("Done:" in one["body"] for one in news())

        self._daemon.wait_until(is_done, within_s=60)


@pytest.mark.parametrize("way", ["yes please", "a reaction", "a spoken yes"])
def test_ten_tasks_put_two_questions_at_most(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    tmp_path: Path,
    page: str,
    ears: str,
    way: str,
) -> None:
    """Each rings by the rules that the server gives a client, and its lines fit a phone."""
    bot, ann = fresh_credentials("bot"), fresh_credentials("ann")
    day = tasks(page)
    with (
        HonestModel(day) as model,
        Daemon(tmp_path / "home", settings(synapse, bot, ann.user_id, model.api_base, ears)) as daemon,
    ):
        daemon.up()
        phone = SecretPeer(synapse.url, ann, tmp_path / "ann")
        room = Room(daemon, phone, bot.user_id)

        def answer(_: dict[str, Any]) -> None:
            if way == "yes please":
                phone.send(room.id, "yes please", to=bot.user_id)
                return
            if way == "a spoken yes":
                sound = voice_event(None, file=encrypted_file(phone.peer, ogg_opus(2.0, says="yes please")))
                phone.send(room.id, sound.pop("body"), to=bot.user_id, **sound)
                return
            newest = phone.encrypted_by(room.id, bot.user_id)[-1]
            relation = {"rel_type": "m.annotation", "event_id": newest, "key": "👍"}
            phone.peer.send_event(room.id, "m.reaction", {"m.relates_to": relation})

        for number, text in enumerate(day):
            if number == 3:  # the owner's own photo is no reason to ask
                photo = {"msgtype": "m.image", "file": encrypted_file(phone.peer, png(30, 20))}
                room.ask("my-list.png", answer, **photo, info={"mimetype": "image/png"})
            room.ask(text, answer)
        rules = phone.peer.call("GET", "/pushrules/")
        said = [one["body"] for one in room.said()]
        phone.close()
        assert 1 <= len(room.questions) <= 2, [one["body"] for one in room.questions]
        assert sum("is approved" in text for text in said) == len(room.questions), said
        assert all(rings(one, rules, ann.user_id) for one in room.questions)
        for one in room.questions:
            lines = one["body"].splitlines()
            assert len([line for line in lines if line]) <= PHONE_LINES, one["body"]
            assert all(len(line) <= PHONE_COLUMNS for line in lines if page not in line), one["body"]
        workspace = tmp_path / "home" / "workspace"
        assert (workspace / "squids.txt").read_text() == "Squids have ten arms."
        assert (workspace / "errands.txt").read_text() == "buy stamps"
        daemon.terminate()
        assert daemon.ended() == 0
