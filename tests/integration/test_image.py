"""The tool `image`: for the owner alone, paid from the budget, sent as any file, and in plain words where nothing comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Audience, SessionKey
from channels.base import LinkState
from devservers import ImageServer, Trouble
from devservers.images import png_of
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.states import InboxState
from gateway.system.home import open_home
from tests.daemon import email_settings, matrix_settings
from tests.doubles.agent import StreamingModel
from tests.doubles.agent import call as use
from tests.inbound import inbound
from tests.integration.command_world import ANN, BOB
from tests.integration.gateway_world import Scenario, world
from tests.integration.matrix_bot import call
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_approvals_by_mail import Harness, mail_server
from tests.integration.test_matrix_media import fetch

__all__ = ["mail_server"]

KEY = "key-of-the-pictures"


class Painter(StreamingModel):
    """Has pictures made as a message says after "paint", a list in JSON; nothing where it has no tools."""

    def __init__(self) -> None:
        self.offered: list[str] = []

    async def answer(self, messages, tools):
        self.offered.append(" ".join(f"{tool.name} {tool.description}" for tool in tools))
        begun = max(at for at, each in enumerate(messages) if each.role == "user")
        found = re.search(r"paint (\[.*\])", messages[begun].content)
        wanted = json.loads(found[1]) if found else []
        results = [
            each.content
            for each in messages[begun:]
            if each.role == "tool" and "was not loaded" not in each.content
        ]
        if tools and not messages[-1].ends_tools and len(results) < len(wanted):
            yield use("image", **wanted[len(results)])
        else:
            yield " | ".join(results) or "hello"


@pytest.fixture
def pictures():
    with ImageServer() as server:
        yield server


def configured(pictures: ImageServer, **image: Any) -> dict[str, Any]:
    return {
        "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
        "llm": {
            "providers": {"pics": {"api_base": pictures.api_base, "api_key": KEY}},
            "models": {"demo": {"model": "demo/demo"}},
            "pools": {"main": ["demo"]},
            "default_pool": "main",
            **image.pop("llm", {}),
        },
        "tools": {"image": {"provider": "pics", "model": "openai/dall-e-9", **image}},
    }


@asynccontextmanager
async def studio(root: Path, pictures: ImageServer, **image: Any) -> AsyncIterator[tuple[Scenario, Painter]]:
    painter = Painter()
    async with world(
        root, name="matrix", settings=configured(pictures, **image), models={"demo": painter}
    ) as one:
        yield one, painter


def wish(*wishes: Mapping[str, Any]) -> str:
    return f"paint {json.dumps(list(wishes))}"


async def cost(one: Scenario) -> tuple[int, float]:
    """How often pictures were paid, and how much."""
    rows = [row for row in await one.built.store.usage.rows(days=1) if row.purpose == "image"]
    return sum(row.usage.calls for row in rows), sum(row.usage.cost_usd or 0.0 for row in rows)


async def test_pictures_come_with_the_answer_and_are_paid(tmp_path, pictures):
    """As files of the answer, with the provider's key, in the usage of the day, and with a receipt."""
    async with studio(tmp_path, pictures, usd_per_image=0.04, extra={"quality": "low"}) as (one, _):
        told = await one.asked(wish({"prompt": "a heron", "count": 2}), person=ANN)
        kept = [(tmp_path / file.path).read_bytes() for file in told.attachments]
        assert await cost(one) == (1, pytest.approx(0.08))
        [receipt] = await one.built.store.receipts.newest(limit=5)
        usage = (await one.asked("!usage", person=ANN)).text
    assert kept == [png_of("a heron 0"), png_of("a heron 1")]
    assert {file.media_type for file in told.attachments} == {"image/png"}
    assert "goes out with your answer" in told.text
    [asked] = pictures.asked
    assert asked == {
        "model": "dall-e-9",
        "response_format": "b64_json",
        "quality": "low",
        "prompt": "a heron",
        "n": 2,
        "size": "1024x1024",
    }
    assert pictures.keys == [f"Bearer {KEY}"]
    assert (receipt.tool, receipt.effect) == ("image", "network_send")
    assert "image" in usage


def wished(prompt, conversation, **more):
    """The owner's wish for a picture."""
    return inbound(SessionKey("matrix", conversation), ANN, wish({"prompt": prompt}), "$wish", **more)


async def test_only_for_the_owner_and_only_where_it_is_configured(tmp_path, pictures):
    """A guest, a group and a home without the section have no such tool; a call of it makes nothing."""
    async with studio(tmp_path / "one", pictures) as (one, _):
        guest = await one.asked(wish({"prompt": "x"}), person=BOB)
        await one.hand_over(wished("x", "!room", audience=Audience.GROUP))
        (shared,) = await one.server.answers(1, conversation="!room")
    settings = configured(pictures)
    del settings["tools"]
    async with world(
        tmp_path / "two", name="matrix", settings=settings, models={"demo": Painter()}
    ) as without:
        nothing = await without.asked(wish({"prompt": "x"}), person=ANN)
    assert pictures.asked == []
    for told in (guest, shared, nothing):
        assert "no tool 'image'" in told.text
        assert told.attachments == ()


async def test_words_of_others_ask_first(tmp_path, pictures):
    """After a text that anybody may have written nothing is sent to the provider before a yes."""
    async with studio(tmp_path, pictures) as (one, _):
        secrets = "the owner's secrets, as a picture"
        await one.hand_over(wished(secrets, f"dm-{ANN}", context={"others_words": True}))
        (question,) = await one.server.answers(1, conversation=f"dm-{ANN}")
        before = list(pictures.asked)
        one.server.say(ANN, "yes")
        answers = await one.server.answers(3, conversation=f"dm-{ANN}")
    assert before == []
    assert "the owner's secrets, as a picture" in question.text
    assert any(each.attachments for each in answers)
    assert len(pictures.paid) == 1


@pytest.mark.parametrize(
    ("trouble", "said", "paid"),
    [
        (Trouble(429, b'{"error": {"message": "slow down"}}'), "more requests than it allows", 0),
        (Trouble(503, b"away"), "cannot be reached", 0),
        (Trouble(401, b'{"error": "no"}'), "does not accept my credentials", 0),
        (Trouble(400, b'{"error": {"message": "content policy"}}'), "refused", 0),
        (Trouble(200, b"<html>"), "not a valid answer", 1),
        (Trouble(200, b'{"data": []}'), "not a valid answer", 1),
        (Trouble(200, b'{"data": [{"url": "http://127.0.0.1/x.png"}]}'), "not a valid answer", 1),
        (Trouble(200, b'{"data": [{"b64_json": "PGh0bWw+"}]}'), "not a valid answer", 1),
        (Trouble(200, b'{"data": [{"b64_json": "%%%"}]}'), "not a valid answer", 1),
        (Trouble(200, json.dumps({"data": [{"b64_json": "A" * 600_000}]}).encode()), "too long for me", 1),
        (Trouble(302, b"", headers={"Location": "http://127.0.0.1/"}), "redirects me", 1),
        (Trouble(200, b'{"data": []}', wait_s=2.0), "too slowly", 1),
    ],
)
async def test_what_goes_wrong_is_said_in_plain_words(tmp_path, pictures, trouble, said, paid):
    """The answer says it; nothing is asked twice; an answer that cannot be read may have been paid and counts."""
    pictures.plan(trouble)
    async with studio(tmp_path, pictures, usd_per_image=0.5, timeout_s=1.0, max_mb=0.1) as (one, _):
        told = await one.asked(wish({"prompt": "a heron"}), person=ANN)
        assert await cost(one) == (paid, 0.5 * paid)
    assert said in told.text
    assert "image model" in told.text
    assert KEY not in told.text
    assert told.attachments == ()
    assert len(pictures.asked) == 1


async def test_a_provider_that_is_not_there(tmp_path):
    """Nobody listens."""
    with ImageServer() as gone:
        pass
    async with studio(tmp_path, gone) as (one, _):
        told = await one.asked(wish({"prompt": "a heron"}), person=ANN)
    assert "cannot be reached" in told.text
    assert "It may work later." in told.text


async def test_so_many_for_a_question_and_no_more(tmp_path, pictures):
    """Over all calls of a turn; the next question has its own."""
    async with studio(tmp_path, pictures, max_per_turn=3) as (one, _):
        told = await one.asked(
            wish({"prompt": "a", "count": 2}, {"prompt": "b", "count": 2}, {"prompt": "c"}), person=ANN
        )
        empty = await one.asked(wish({"prompt": " "}), person=ANN)
        wrong = await one.asked(wish({"prompt": "a", "size": "huge"}), person=ANN)
        again = await one.asked(wish({"prompt": "d", "size": "512x512"}), person=ANN)
    assert "1 are left. Nothing was made." in told.text
    assert pictures.paid == ["a", "c", "d"]
    assert len(told.attachments) == 3
    assert "missing" in empty.text
    assert "do not fit" in wrong.text
    assert len(again.attachments) == 1
    assert pictures.asked[-1]["size"] == "512x512"


async def test_the_budget_of_the_day_ends_it(tmp_path, pictures):
    """The picture after which the day's money is spent is the last one; it comes, and what is asked next waits."""
    llm = {"budget": {"usd_per_day": 1.0}}
    async with studio(tmp_path, pictures, usd_per_image=1.5, llm=llm) as (one, _):
        one.server.say(ANN, wish({"prompt": "a"}, {"prompt": "b"}))
        seen = await one.server.answers(2, conversation=f"dm-{ANN}")  # the owner is told of the budget, too
        one.server.say(ANN, wish({"prompt": "c"}))
        while not (await one.built.store.inbox.rows(states=[InboxState.READY])):
            await anyio.sleep(0.02)
    assert pictures.paid == ["a"]
    assert sum(len(each.attachments) for each in seen) == 1


async def test_through_litellm_in_its_process(tmp_path, pictures):
    """A provider that our own client is not to be used for; the picture is the same."""
    async with studio(tmp_path, pictures, client="litellm", model="openai/dall-e-3", usd_per_image=0.1) as (
        one,
        _,
    ):
        before = len(one.server.seen(f"dm-{ANN}"))
        one.server.say(ANN, wish({"prompt": "a heron", "count": 2}))
        told = (await one.server.answers(before + 1, conversation=f"dm-{ANN}", within_s=80))[-1]
        kept = [(tmp_path / file.path).read_bytes() for file in told.attachments]
        paid = await cost(one)
        assert one.built.models.litellm.pid is not None
    assert kept == [png_of("a heron 0")] * 2, told.text
    assert paid == (1, pytest.approx(0.2))


async def test_on_real_servers(
    synapse: Any, fresh_credentials: Any, alice: Any, mail_server: Any, pictures: Any, tmp_path: Path
) -> None:
    """A picture comes into a plain and an encrypted room, and by mail as a file."""
    house, bot = Harness(mail_server, 5, tmp_path), fresh_credentials("bot")
    secret = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    settings = {
        **configured(pictures),
        "owner": {"aliases": [alice.user_id, secret.user_id, house.address("owner")]},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "email": email_settings(mail_server, house.bot, "pw"),
            "matrix": matrix_settings(synapse, bot.user_id, bot.password),
        },
    }
    overrides = Overrides(models={"demo": Painter()})
    built = await build(Settings.model_validate(settings), open_home(tmp_path / "home"), overrides)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        try:
            with anyio.fail_after(60):
                await built.supervisor.wait(lambda: built.supervisor.status("email").state is LinkState.UP)
                room = await call(alice.create_room, [bot.user_id], is_direct=True)
                hidden = await anyio.to_thread.run_sync(secret.create_room, bot.user_id)
                for who, where in ((alice, room), (secret.peer, hidden)):
                    while bot.user_id not in await call(who.members, where):
                        await anyio.sleep(0.1)
                await house.write("owner", wish({"prompt": "by mail"}), subject="Heron")
                await call(alice.send, room, wish({"prompt": "plain"}))
                await anyio.to_thread.run_sync(
                    lambda: secret.send(hidden, wish({"prompt": "hidden"}), to=bot.user_id)
                )
                while True:
                    plain = [
                        each.content
                        for each in await call(alice.history, room)
                        if each.sender == bot.user_id and each.content.get("msgtype") == "m.image"
                    ]
                    told = await anyio.to_thread.run_sync(secret.read, hidden)
                    private = [(wire, each) for wire, each in told if each.get("msgtype") == "m.image"]
                    listed = await anyio.to_thread.run_sync(house.people["owner"].list)
                    mails = [mail for mail in listed if mail["In-Reply-To"]]
                    if plain and private and mails:
                        break
                    await anyio.sleep(0.2)
                content = await anyio.to_thread.run_sync(lambda: fetch(alice, plain[0]["url"])[1])
        finally:
            built.stop()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            tasks.cancel_scope.cancel()
            secret.close()
    assert content == png_of("plain 0")
    assert private[0][0] == "m.room.encrypted"
    assert "file" in private[0][1]
    [part] = list(mails[0].iter_attachments())
    assert part.get_payload(decode=True) == png_of("by mail 0")
