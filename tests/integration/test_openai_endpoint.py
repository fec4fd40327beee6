"""
The endpoint as its clients use it: OpenAI's own package, and request bodies as Open WebUI and Home Assistant send them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
import time
import urllib.error
import urllib.request
from functools import partial

import httpx
import openai
import pytest
from anyio.to_thread import run_sync

from gateway.routing.household import GUEST_TOOLS
from tests.command_line import squidbot
from tests.daemon import Daemon
from tests.home_damage import fill
from tests.openai_endpoint import OWNER, CountingModel, endpoint_settings, history_of, make_token

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200, func_only=True)]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def post(daemon, path, body, token, **headers):
    """Status, headers and body as text."""
    given = {"Content-Type": "application/json", **headers}
    given |= {"Authorization": f"Bearer {token}"} if token else {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{daemon.url}{path}", data, given)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


OPEN = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def _closed():
    with OPEN:
        yield


def client_of(daemon, token):
    made = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=token, max_retries=0, timeout=120)
    return OPEN.enter_context(made)


def said(client, text, **more):
    made = client.chat.completions.create(
        model="squidbot", messages=[{"role": "user", "content": text}], **more
    )
    return made.choices[0].message.content


@pytest.fixture
def demo(tmp_path):
    settings = endpoint_settings(tools={"require_approval": ["memory_write"]})
    with Daemon(tmp_path / "home", settings) as daemon:
        yield daemon.up()


async def in_daemon(tmp_path, test, *, pause_s=0.0, **more):
    """Run a function with a daemon whose model counts, and the model."""
    async with CountingModel(pause_s=pause_s) as model:
        with Daemon(tmp_path / "home", endpoint_settings(model.api_base, **more)) as daemon:
            await run_sync(daemon.up)
            await run_sync(partial(test, daemon, model))


def test_a_token_is_made_before_the_first_start(tmp_path):
    """In a home with nothing but its configuration."""
    with Daemon(tmp_path / "home", endpoint_settings()) as daemon:
        token = make_token(daemon)
        daemon.up()
        assert [one.id for one in client_of(daemon, token).models.list()] == ["squidbot"]


def test_tokens_open_it_and_nothing_else_does(demo):
    """Each has a name and a person; its text is shown once, stored as a hash, and worth nothing once revoked."""
    token = make_token(demo)
    assert [one.id for one in client_of(demo, token).models.list()] == ["squidbot"]
    assert client_of(demo, token).models.retrieve("squidbot").id == "squidbot"
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/anything"):
        for wrong in ("", "sqb-wrong", f"{token}x"):
            status, headers, text = post(demo, path, {}, wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert json.loads(text)["error"]["code"] == "invalid_api_key"
    listed = squidbot(demo.home, "tokens", "list").stdout
    assert f"phone  {OWNER}" in listed
    stored = [path for path in demo.home.rglob("*") if path.is_file() and token in path.read_text("latin-1")]
    assert stored == []
    assert token not in listed + demo.log()
    again = squidbot(demo.home, "tokens", "add", "phone")
    assert (again.returncode, "already" in again.stderr) == (1, True)
    stranger = squidbot(demo.home, "tokens", "add", "bob", "--for", "bob@example.org")
    assert (stranger.returncode, "may not talk" in stranger.stderr) == (1, True)
    assert squidbot(demo.home, "tokens", "revoke", "phone").returncode == 0
    with pytest.raises(openai.AuthenticationError):
        client_of(demo, token).models.list()
    assert squidbot(demo.home, "tokens", "revoke", "phone").returncode == 1


def test_what_cannot_be_done_has_an_error_that_clients_know(demo):
    """Statuses and codes are OpenAI's; what a server may ignore is ignored."""
    token = make_token(demo)
    client, hello = client_of(demo, token), [{"role": "user", "content": "hello"}]
    create = partial(client.chat.completions.create, model="squidbot", messages=hello)
    for wrong, kind, param in [
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"tool_choice": "required", "tools": []}, openai.BadRequestError, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, openai.BadRequestError, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            openai.BadRequestError,
            None,
        ),
        ({"messages": [{"role": "king", "content": "x"}]}, openai.BadRequestError, "messages[0].role"),
        ({"extra_headers": {"Idempotency-Key": "k" * 300}}, openai.BadRequestError, None),
    ]:
        with pytest.raises(kind) as caught:
            create(**wrong)
        assert caught.value.body["type"] == "invalid_request_error"
        if param:
            assert caught.value.body["param"] == param
    assert create(temperature=0.1, top_p=1, seed=1, extra_body={"top_k": 3}).choices[0].message.content
    assert post(demo, "/v1/chat/completions", b"{", token)[0] == 400
    assert post(demo, "/v1/chat/completions", b"[" * 100_000, token)[0] == 400
    assert post(demo, "/v1/chat/completions", b" " * 9_000_000, token)[0] == 413
    assert post(demo, "/v1/embeddings", {}, token)[0] == 404
    assert (
        post(demo, "/v1/models", {}, token, Host="evil.example")[0] == 404
    )  # the token decides, not the name


def test_an_approval_is_asked_for_and_given_in_the_conversation(demo):
    """The question is the answer of the first request; the yes is answered with what came of it."""
    client = client_of(demo, make_token(demo))
    here = {"metadata": {"conversation": "kitchen"}}
    assert "I need your approval" in said(client, "remember that the code is blue7x", **here)
    outcome = said(client, "yes", extra_headers={"Idempotency-Key": "yes"}, **here)
    assert "is approved" in outcome
    assert "I will remember" in outcome
    demo.kill()
    demo.up()
    assert said(client, "yes", extra_headers={"Idempotency-Key": "yes"}, **here) == outcome
    memory = "\n".join(path.read_text() for path in demo.home.rglob("MEMORY.md"))
    assert memory.count("blue7x") == 1


async def test_a_repeated_request_has_the_same_answer(tmp_path):
    """Also while the first one still runs, streaming or not; the key with another request is refused."""

    def test(daemon, model):
        token = make_token(daemon)
        client = client_of(daemon, token)
        key = {"extra_headers": {"Idempotency-Key": "one"}}
        answers = []
        both = [
            threading.Thread(target=lambda: answers.append(said(client, "hello", **key))) for _ in range(3)
        ]
        for each in both:
            each.start()
        for each in both:
            each.join()
        chunks = client.chat.completions.create(
            model="squidbot", messages=[{"role": "user", "content": "hello"}], stream=True, **key
        )
        answers.append("".join(one.choices[0].delta.content or "" for one in chunks))
        assert (len(answers), len(set(answers)), len(model.requests)) == (4, 1, 1)
        with pytest.raises(openai.UnprocessableEntityError, match="Idempotency-Key"):
            said(client, "something else", **key)
        other = client_of(daemon, make_token(daemon, "other"))
        assert said(other, "hello", **key) not in answers
        assert said(client, "hello") not in answers

    await in_daemon(tmp_path, test, pause_s=0.1)


async def test_an_answer_streams_as_it_is_made(tmp_path):
    """Several pieces come before the end, and together they are the answer."""

    def test(daemon, model):
        client = client_of(daemon, make_token(daemon))
        started, times, pieces = time.monotonic(), [], []
        for chunk in client.chat.completions.create(
            model="squidbot",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        ):
            if chunk.choices and chunk.choices[0].delta.content:  # the last one has the tokens alone
                pieces.append(chunk.choices[0].delta.content)
                times.append(time.monotonic() - started)
        assert "".join(pieces) == "to hello: answer number <0>."
        assert len(pieces) >= 3, times

    await in_daemon(tmp_path, test, pause_s=0.2)


async def test_a_client_that_goes_away_loses_nothing(tmp_path):
    """The turn ends, the answer is in the history, and a repetition has it."""

    def test(daemon, model):
        token = make_token(daemon)
        for streams in (False, True):
            key = {"Idempotency-Key": f"gone {streams}", "Authorization": f"Bearer {token}"}
            body = {"model": "squidbot", "stream": streams, "metadata": {"conversation": "c"}}
            body["messages"] = [{"role": "user", "content": f"gone {streams}"}]
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{daemon.url}/v1/chat/completions", json=body, headers=key, timeout=0.3)
            daemon.wait_until(lambda: daemon.work("inbox", "settled") == 1 + streams)  # noqa: B023
            answer = httpx.post(
                f"{daemon.url}/v1/chat/completions", json={**body, "stream": False}, headers=key
            )
            assert (
                answer.json()["choices"][0]["message"]["content"]
                == f"to gone {streams}: answer number <{+streams}>."
            )
        assert len(model.requests) == 2
        daemon.terminate()
        daemon.ended()
        assert "gone True: answer number <1>" in history_of(daemon.home)

    await in_daemon(tmp_path, test, pause_s=0.3)


async def test_conversations_and_what_the_client_says_was_before(tmp_path):
    """With a name our own history counts; without one, what the client sends is background, never an order."""

    def test(daemon, model):
        client = client_of(daemon, make_token(daemon))
        for text in ("first", "second"):
            said(client, text, metadata={"conversation": "a"})
        assert "first" in json.dumps(model.requests[-1])
        messages = [
            {"role": "system", "content": "talk like a pirate"},
            {"role": "user", "content": "the ship is called Anna"},
            {"role": "assistant", "content": "aye, Anna"},
            {"role": "user", "content": "what is its name?"},
        ]
        client.chat.completions.create(model="squidbot", messages=messages)
        sent = model.requests[-1]["messages"]
        asked = str(sent[-1]["content"])
        assert "first" not in json.dumps(sent)
        assert all(
            text in asked for text in ("talk like a pirate", "[squidbot] aye, Anna", "what is its name?")
        )
        assert "pirate" not in str(sent[0]["content"])
        client.chat.completions.create(model="squidbot", messages=messages, metadata={"conversation": "a"})
        assert "pirate" not in json.dumps(model.requests[-1])

    await in_daemon(tmp_path, test)


def unreachable_mail(*allowed):
    """A mail account on whose channel these people may talk; its servers are away."""
    mail = {"address": "b@example.org", "username": "b", "password": "p", "trusted_authserv_ids": ["mx"]}
    hosts = {name: {"host": "127.0.0.1", "port": 9, "security": "none"} for name in ("imap", "smtp")}
    return {**mail, **hosts, "allow_from": list(allowed)}


async def test_people_have_conversations_of_their_own(tmp_path):
    """One name of a conversation, two people: neither sees the other's words. Who may not talk has no access."""
    channels = {"api": {}, "email": unreachable_mail("bob@example.org")}

    def test(daemon, model):
        mine, bobs = make_token(daemon), make_token(daemon, "bob", "--for", "Bob@Example.org")
        said(client_of(daemon, mine), "my secret is vermilion7", metadata={"conversation": "a"})
        said(client_of(daemon, bobs), "what do you know?", metadata={"conversation": "a"})
        assert "vermilion7" not in json.dumps(model.requests[-1])
        daemon.kill()
        config = daemon.home / "squidbot.yaml"
        config.write_text(config.read_text().replace("bob@example.org", "carol@example.org"))
        daemon.start()
        daemon.wait_until(lambda: daemon.asked("/livez")[0] == 200)
        with pytest.raises(openai.PermissionDeniedError):
            said(client_of(daemon, bobs), "hello")
        daemon.kill()
        moved = squidbot(daemon.home, "person", "move", "bob@example.org", "bob@mail.test", "--json")
        assert json.loads(moved.stdout)["tokens"] == 1, moved.stderr
        assert "bob@mail.test" in squidbot(daemon.home, "tokens", "list").stdout
        for is_dry, count in ((True, 2), (False, 1)):
            dry = ["--dry-run"] if is_dry else ["--yes"]
            gone = squidbot(daemon.home, "forget", "bob@mail.test", *dry, "--json")
            assert json.loads(gone.stdout)["tokens"] == 1, gone.stderr
            assert len(json.loads(squidbot(daemon.home, "tokens", "list", "--json").stdout)["rows"]) == count

    async with CountingModel() as model:
        settings = endpoint_settings(model.api_base, channels=channels)
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.start()
            await run_sync(daemon.wait_until, lambda: daemon.asked("/livez")[0] == 200)
            await run_sync(partial(test, daemon, model))


async def test_a_guests_token_opens_what_a_guest_may(tmp_path):
    """Their tools and no command of the owner; the control: the owner's token, in a conversation of the same name."""
    channels = {"api": {}, "email": unreachable_mail("cid@example.org")}
    people = {"cid": {"addresses": ["cid@example.org"], "role": "guest"}}

    def test(daemon, model):
        tokens = make_token(daemon), make_token(daemon, "cid", "--for", "cid@example.org")
        mine, guests = (client_of(daemon, each) for each in tokens)
        offered = []
        for client in (mine, guests):
            said(client, "hello", metadata={"conversation": "a"})
            offered.append({each["function"]["name"] for each in model.requests[-1].get("tools", ())})
        assert offered[1] <= {*GUEST_TOOLS, "find_tools"} < offered[0] | {"find_tools", "read_attachment"}
        for command in (
            "!allow",
            "!allow eve@example.org",
            "!persona Be rude.",
            "!model m",
            "!files",
            "!console",
        ):
            assert "owner" in said(guests, command, metadata={"conversation": "a"}), command
            assert "Only my owner" not in said(mine, command, metadata={"conversation": "a"}), command
        refused = said(guests, "!watch https://example.org/feed", metadata={"conversation": "a"})
        assert "owner" in refused

    async with CountingModel() as model:
        settings = endpoint_settings(model.api_base, channels=channels, people=people)
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.start()
            await run_sync(daemon.wait_until, lambda: daemon.asked("/livez")[0] == 200)
            await run_sync(partial(test, daemon, model))


async def test_the_requests_of_open_webui_and_home_assistant(tmp_path):
    """
    Open WebUI forwards what its user sees, with its own parameters and, if told to, the id of the chat. Home
    Assistant's agents send tools, the conversation as ``user``, and read a stream.
    """

    def test(daemon, model):
        token = make_token(daemon)
        webui = {
            "stream": True,
            "model": "squidbot",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "from the browser"}]}],
            "temperature": 0.8,
            "stream_options": {"include_usage": True},
        }
        for number in range(2):
            status, headers, text = post(
                daemon, "/v1/chat/completions", webui, token, **{"X-OpenWebUI-Chat-Id": "5c6f-1"}
            )
            assert (status, headers["Content-Type"]) == (200, "text/event-stream")
            said = re.findall(r'"content": "([^"]*)"', text)  # in as many pieces as there was time for
            assert f"number <{number}>" in "".join(said)
            assert text.endswith("data: [DONE]\n\n")
            last = json.loads(text.split("data: ")[-2])
            assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], 4)
            assert text.count('"usage"') == 1
        assert json.dumps(model.requests[-1]).count("from the browser") >= 2  # the second knows the first
        tool = {"type": "function", "function": {"name": "HassTurnOn", "parameters": {"type": "object"}}}
        home = {
            "model": "squidbot",
            "messages": [
                {"role": "system", "content": "You are a voice assistant for Home Assistant."},
                {"role": "user", "content": "is the door open?"},
            ],
            "tools": [tool],
            "tool_choice": "auto",
            "max_completion_tokens": 150,
            "top_p": 1.0,
            "temperature": 1.0,
            "user": "01JD",
        }
        for streams in (False, True):
            status, _, text = post(daemon, "/v1/chat/completions", {**home, "stream": streams}, token)
            assert (status, "is the door open?" in text) == (200, True)
            # Its agent reads this of each answer that is no stream, and fails without it.
            assert ('"total_tokens": ' in text) == (not streams)
            assert "HassTurnOn" not in json.dumps(model.requests[-1])

    await in_daemon(tmp_path, test)


async def test_responses_are_stateless(tmp_path):
    """The newer form of request, streaming and not, by OpenAI's package; what needs state here is refused."""

    def test(daemon, model):
        client = client_of(daemon, make_token(daemon))
        made = client.responses.create(model="squidbot", input="hello", instructions="be brief")
        assert (made.output_text, made.status) == ("to hello: answer number <0>.", "completed")
        assert "be brief" in str(model.requests[-1]["messages"][-1]["content"])
        items = [
            {"role": "user", "content": "one"},
            {"type": "function_call_output", "call_id": "c", "output": "two"},
            {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
        ]
        with client.responses.stream(model="squidbot", input=items) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            assert (
                "".join(deltas) == stream.get_final_response().output_text == "to three: answer number <1>."
            )
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(model="squidbot", input="x", previous_response_id=made.id)

    await in_daemon(tmp_path, test)


async def test_a_reminder_comes_with_the_next_request(tmp_path):
    """Nobody is written to who has not asked: it waits in the outbox, over a restart."""

    def test(daemon, model):
        client = client_of(daemon, make_token(daemon))
        assert "tea" in said(client, "!remind me in 1s tea", metadata={"conversation": "a"})
        daemon.wait_until(lambda: daemon.work("outbox", "pending") == 1)
        daemon.terminate()
        assert daemon.ended() == 0
        daemon.up()
        daemon.wait_until(lambda: "message.kept" in daemon.log())
        answer = said(client, "hello", metadata={"conversation": "b"})
        assert ("tea" in answer, "to hello: answer number <0>." in answer) == (True, True)
        assert "tea" not in said(client, "hello", metadata={"conversation": "b"})

    await in_daemon(tmp_path, test)


async def test_pictures_come_as_data(tmp_path):
    """A data: URL becomes an attachment of the message; a link is not fetched."""

    def test(daemon, model):
        client = client_of(daemon, make_token(daemon))

        def picture(url):
            parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
            return client.chat.completions.create(
                model="squidbot", messages=[{"role": "user", "content": parts}]
            )

        picture(f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}")
        kept = [path for path in (daemon.home / "attachments").rglob("*.png") if path.read_bytes() == PIXEL]
        assert len(kept) == 1
        for url in ("https://example.org/a.png", "data:image/png;base64,????"):
            with pytest.raises(openai.BadRequestError):
                picture(url)

    await in_daemon(tmp_path, test)


async def test_a_token_has_a_bounded_number_of_open_requests(tmp_path):
    """One more is told when to come again; others are served meanwhile."""

    def test(daemon, model):
        client, other = client_of(daemon, make_token(daemon)), client_of(daemon, make_token(daemon, "other"))
        asking = [threading.Thread(target=said, args=(client, f"q{number}")) for number in range(16)]
        for each in asking:
            each.start()
        daemon.wait_until(lambda: daemon.work("inbox", "ready", "running") == 16)
        with pytest.raises(openai.RateLimitError) as caught:
            said(client, "one more")
        assert caught.value.response.headers["Retry-After"]
        assert other.models.list()
        for each in asking:
            each.join()
        assert said(client, "later")

    await in_daemon(tmp_path, test, pause_s=0.5)


def test_nothing_is_there_until_it_is_switched_on(tmp_path):
    """Without ``channels.api`` there is no route, and nothing of it is loaded."""
    with Daemon(tmp_path / "home", endpoint_settings(channels={})) as daemon:
        daemon.start()
        daemon.wait_until(lambda: daemon.asked("/livez")[0] == 200)
        assert post(daemon, "/v1/models", {}, "x")[0] == 404
        done = squidbot(daemon.home, "tokens", "add", "phone")
        assert (done.returncode != 0, "channels" in done.stderr) == (True, True)


async def test_a_full_disk(small_disk):
    """A question that cannot be kept is refused and reaches no model; with room the same key has one answer."""
    body = {"model": "squidbot", "messages": [{"role": "user", "content": "while full"}]}

    def ask(daemon, token, text, key):
        asked = {**body, "messages": [{"role": "user", "content": text}]}
        status, _, answer = post(daemon, "/v1/chat/completions", asked, token, **{"Idempotency-Key": key})
        return status, json.loads(answer)

    def check(daemon, model):
        token = make_token(daemon)
        assert ask(daemon, token, "before", "k1")[0] == 200  # the control
        asked = len(model.requests)
        ballast = fill(small_disk)
        status, told = ask(daemon, token, "while full", "k2")
        assert (status, told["error"]["code"]) == (503, "unavailable")
        assert len(model.requests) == asked
        ballast.unlink()
        first, again = (ask(daemon, token, "while full", "k2") for _ in range(2))
        assert first[0] == again[0] == 200
        assert first[1]["choices"] == again[1]["choices"]
        assert len(model.requests) == asked + 1

    await in_daemon(small_disk, check)
