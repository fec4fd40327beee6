"""Pictures go out to models that look, by both clients alike; others get a note in words."""

from __future__ import annotations

import base64

import pytest

from agent_core.llm.factory import build_models
from agent_core.llm.litellm.litellm_client import LiteLLMClient, LiteLLMProcess
from agent_core.llm.model_config import LLMSpec
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.prompt_pictures import MAX_PICTURE_BYTES, pictures_of
from agent_core.messages import Attachment
from agent_core.models import Message
from channels.attachments import AttachmentStore
from tests.clock import LoopClock
from tests.contract.llm import collect
from tests.doubles.openai_server import FakeOpenAI, Status
from tests.pictures import jpeg, png

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm"),
]


@pytest.fixture(scope="module")
def anyio_backend():
    """One event loop for all tests here, because the process of litellm belongs to one."""
    return "asyncio"


@pytest.fixture(scope="module")
async def process(anyio_backend):
    one = LiteLLMProcess()
    yield one
    await one.aclose()


@pytest.fixture
async def fake():
    async with FakeOpenAI() as server:
        yield server


@pytest.fixture
def store(tmp_path):
    return AttachmentStore(tmp_path)


@pytest.fixture(params=[OpenAIClient, pytest.param(LiteLLMClient, marks=pytest.mark.slow)])
async def make_client(request, fake, process):
    clients = []

    def make(**more):
        if request.param is LiteLLMClient:
            more["process"] = process
        clients.append(request.param("openai/test", api_base=fake.api_base, clock=LoopClock(), **more))
        return clients[-1]

    yield make
    for client in clients:
        if isinstance(client, OpenAIClient):
            await client.aclose()


async def question(store):
    """A picture, something that only calls itself one, and a picture that is gone."""
    picture = await store.save("cat.png", "image/png", png())
    lying = (await store.save("x.txt", "text/plain", b"no")).model_copy(update={"media_type": "image/png"})
    gone = await store.save("gone.jpg", "image/jpeg", jpeg())
    store.path(gone).unlink()
    return Message(role="user", content="what is this?", attachments=(picture, lying, gone))


async def test_a_model_that_looks_gets_the_picture(fake, make_client, store):
    """Text with notes first, then the picture as it is on the disk; other messages stay plain texts."""
    asked = await question(store)
    await collect(make_client(pictures=store), [Message(role="system", content="sys"), asked], [])
    system, user = fake.requests[0]["messages"]
    assert system["content"] == "sys"
    text, picture = user["content"]
    notes = [f"[Attachment {file.id} cannot be shown to you.]" for file in asked.attachments[1:]]
    assert text == {"type": "text", "text": "\n".join(["what is this?", *notes])}
    head, _, data = picture["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == png()


async def test_another_model_gets_a_note(fake, make_client, store):
    """No picture leaves for a model that is not said to look at any."""
    asked = await question(store)
    await collect(make_client(), [asked], [])
    (user,) = fake.requests[0]["messages"]
    assert user["content"].startswith("what is this?\n[Attachment ")
    assert user["content"].count("cannot be shown to you") == 3


async def test_in_one_pool_each_gets_what_it_can_take(fake, store):
    """The first, which looks, fails; the second, which does not, is asked with a note."""
    spec = LLMSpec.model_validate(
        {
            "providers": {"local": {"api_base": fake.api_base}},
            "models": {
                "sees": {"provider": "local", "model": "openai/sees", "vision": True},
                "blind": {"provider": "local", "model": "openai/blind"},
            },
            "pools": {"main": ["sees", "blind"]},
        }
    )
    models = build_models(spec, LoopClock(), attachments=store)
    assert models.vision
    fake.plan(Status(503))
    await collect(models.pool(), [await question(store)], [])
    await models.aclose()
    first, second = fake.requests
    assert (first["model"], type(first["messages"][0]["content"])) == ("sees", list)
    assert (second["model"], type(second["messages"][0]["content"])) == ("blind", str)
    assert not build_models(spec, LoopClock()).vision


async def test_only_so_much_goes_out(store):
    """One that is too large is left out, and of many the newest stay within the limit of all together."""
    large = await store.save("large.png", "image/png", png() + bytes(MAX_PICTURE_BYTES))
    many = [await store.save("p", "image/png", png() + bytes([n]) + bytes(3_000_000)) for n in range(9)]
    messages = [Message(role="user", content="", attachments=(file,)) for file in [large, *many]]
    noted, found = await pictures_of(messages, store)
    assert "its file is too large" in noted[0].content
    assert list(found) == [file.sha256 for file in reversed(many)][: len(found)]
    assert 4 <= len(found) <= 6


async def test_a_disk_that_fails_costs_the_picture_and_no_more(store):
    """An error of the disk is a note for the model, not the end of the turn."""
    kept = await store.save("a.png", "image/png", png())
    store.path(kept).unlink()
    store.path(kept).mkdir()
    asked = Message(role="user", content="?", attachments=(kept,))
    assert (await pictures_of([asked], store))[1] == {}
    forged = Attachment(name="x", media_type="image/png", size_bytes=1, path="../../etc/passwd", sha256="0")
    asked = Message(role="user", content="?", attachments=(forged,))
    assert (await pictures_of([asked], store))[1] == {}


async def test_a_picture_that_is_too_long_is_left_out_alone(fake, make_client, store):
    """The good one beside it is shown, and the model reads why the other is not."""
    tall = await store.save("tall.png", "image/png", png(1000, 12_000))
    cat = await store.save("cat.png", "image/png", png())
    asked = Message(role="user", content="what are these?", attachments=(tall, cat))
    await collect(make_client(pictures=store), [asked], [])
    text, picture = fake.requests[0]["messages"][0]["content"]
    why = "it has 1000 × 12000 pixels, which is too large"
    assert text["text"] == f"what are these?\n[Attachment {tall.id} cannot be shown to you: {why}.]"
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == png()
    assert len(fake.requests) == 1


@pytest.mark.parametrize(("count", "shown"), [(20, 20), (21, 20)])
async def test_many_pictures_have_to_be_smaller(store, count, shown):
    """More than twenty: each side is 2,000 pixels at most."""
    files = [await store.save("p.png", "image/png", png(2, 2 + n)) for n in range(count - 1)]
    files.insert(0, await store.save("wide.png", "image/png", png(2001, 1)))
    noted, found = await pictures_of([Message(role="user", content="?", attachments=tuple(files))], store)
    assert len(found) == shown
    assert ("2001 × 1 pixels" in noted[0].content) is (count > shown)
