"""The demo model's sentences. That it is an `LLMPort` is in the contract suite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_core.errors import ModelUnavailable
from agent_core.llm.demo import demo_model as demo_model
from agent_core.llm.demo import rules
from agent_core.llm.demo.demo_model import DemoModel, EchoModel
from agent_core.llm.demo.rules import memory_in
from agent_core.models import Message, ToolCall, ToolDefinition
from agent_core.prompt import BASE_PROMPT, remembered_text, system_text, transcript_line

pytestmark = pytest.mark.virtual_time
WRITE = [ToolDefinition(name="memory_write", description="", parameters={"type": "object"})]


async def say(text, memory="", *, tools=WRITE, model=None, more=()):
    """Text and calls of the answer to ``text``."""
    messages = [
        Message(role="system", content=system_text(BASE_PROMPT, memory=memory, summary="They talked.")),
        Message(role="user", content=text),
        *more,
    ]
    chunks = [c async for c in await (model or DemoModel()).chat(messages, tools)]
    return "".join(c for c in chunks if isinstance(c, str)), [c for c in chunks if isinstance(c, ToolCall)]


async def written(text, memory=""):
    _, (call,) = await say(text, memory)
    assert call.name == "memory_write"
    return call.arguments["content"]


async def test_remember_keeps_what_is_there():
    """A new fact becomes a line below the document as it is, headings and all."""
    document = "## Profile\n- name: Alice\n\n## Projects\n- a boat"

    assert (
        await written("Please remember that my cat is called Tom", document)
        == f"{document}\n- my cat is called Tom"
    )
    assert await written("remember that I like tea") == "- I like tea"


async def test_several_facts_at_once():
    """Messages that were merged into one question lose no fact."""
    assert await written("remember that a\n\nremember that b") == "- a\n- b"


async def test_what_is_known_is_not_written_twice():
    """A fact that stands there already is not written again."""
    text, calls = await say("remember that tea", "- tea")

    assert (text, calls) == ("I know that already.", [])


async def test_forget():
    """The lines with the word go, the others stay."""
    assert (
        await written("forget about the cat", "- my cat is Tom\n- the cat sleeps\n- tea")
        == "- my cat is Tom\n- tea"
    )
    assert await written("forget cat", "- my cat is Tom\n- tea") == "- tea"
    text, calls = await say("forget dogs", "- tea")
    assert "nothing to forget" in text
    assert not calls


async def test_after_the_tool():
    """It confirms what was written and tells what went wrong, never the other way round."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name="memory_write"),))
    good, _ = await say(
        "remember that tea", more=[call, Message(role="tool", content="Saved.", tool_call_id="1")]
    )
    bad, _ = await say(
        "remember that tea", more=[call, Message(role="tool", content="Error: disk full", tool_call_id="1")]
    )

    assert good == "I will remember that tea."
    assert "could not" in bad
    assert "disk full" in bad


async def test_a_conflict_is_merged():
    """When another conversation wrote meanwhile, its text is kept and the fact is added to it."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name="memory_write"),))
    conflict = (
        "Error: Not saved: another conversation has changed the memory since you read it. This is the document "
        "now; merge your change into it and call memory_write again.\n\n- coffee"
    )
    _, (again,) = await say(
        "remember that tea", more=[call, Message(role="tool", content=conflict, tool_call_id="1")]
    )

    assert again.arguments == {"content": "- coffee\n- tea"}


async def test_recall():
    """It tells the document as it is, says so when there is none, and finds the line of a question."""
    text, _ = await say("What do you know about me?", "- tea\n- boats")
    assert "- tea\n- boats" in text
    text, _ = await say("what do you know about me?")
    assert text == "I know nothing about you yet."
    text, _ = await say("What is my cat called?", "- my cat is called Tom\n- tea")
    assert "Tom" in text
    assert "tea" not in text


async def test_what_was_said_earlier():
    """A question is answered from the conversation and from passages that were looked up, never from a question."""
    more = [
        Message(role="assistant", content="Nice."),
        Message(role="user", content="Which train goes at nine?"),
        Message(role="assistant", content="I do not know."),
        Message(role="user", content="When does my train go?"),
    ]
    text, _ = await say("My train to Bonn goes at 8:12.", more=more)
    assert text == "You told me earlier:\n\n> My train to Bonn goes at 8:12."
    found = remembered_text([("3 May, Kitchen", [("Ann", "the plumber is called Weber"), ("you", "Noted.")])])
    passages = Message(role="system", content=found)
    text, _ = await say("hello", more=[passages, Message(role="user", content="Who is the plumber?")])
    assert text == "You told me earlier:\n\n> the plumber is called Weber"
    text, _ = await say("Which boat is mine?", more=[Message(role="user", content="Which boat is yours?")])
    assert "You wrote" in text


def test_the_document_is_found_in_the_prompt():
    """Headings, fences and summaries around and inside the document do not confuse it."""
    tricky = "## Session Summary\n</memory>\n- tea"
    message = Message(
        role="system", content=system_text("x", memory=tricky, summary="s", skills=["## Skills"])
    )

    assert memory_in([message]) == tricky
    assert memory_in([Message(role="system", content="no memory")]) == ""


async def test_without_the_tool():
    """Where there is no memory it says so and calls nothing."""
    text, calls = await say("remember that tea", tools=[])

    assert "no memory" in text
    assert not calls


@pytest.mark.parametrize(
    "text", ["hello", "help", "thanks!", "who are you?", "what time is it?", "bye", "tell me a story", ""]
)
async def test_it_always_says_something(text):
    """Every message gets a sentence, the same each time."""
    first, _ = await say(text)
    second, _ = await say(text)

    assert first
    assert first == second


async def test_it_gives_back_what_was_asked():
    """What it does not understand comes back, without the facts and the sender before it."""
    text, _ = await say("[Fri 2026-11-20 10:00 UTC, matrix]\n[@bob:hs.test] tell me a story")

    assert "“tell me a story”" in text


async def test_failing_so_often_and_then_not():
    """The number says how often; after that the same message is answered, and then it begins anew."""
    model = DemoModel()
    for _ in range(2):
        for _ in range(3):
            with pytest.raises(ModelUnavailable):
                await say("!timeout 3", model=model)
        text, _ = await say("!timeout 3", model=model)
        assert "I failed 3 times" in text


async def test_crash():
    """A defect is no `ModelError`."""
    with pytest.raises(RuntimeError):
        await say("!crash")


async def test_long():
    """As long as was asked for."""
    assert len((await say("!long"))[0]) == 20_000
    assert len((await say("!long 300"))[0]) == 300


async def test_every_magic_word_is_documented():
    """The module's table and ``help`` name each word that is understood."""
    words = rules._WORDS.split("|")
    help_text, _ = await say("help")

    assert set(demo_model._FAILS) < set(words)
    for word in words:
        assert f"``!{word}``" in demo_model.__doc__
        assert f"`!{word}`" in help_text


async def test_heartbeat():
    """It is silent without an open item on the list and names the open ones."""
    assert (await say("Check in. Say HEARTBEAT_OK if all is well.\n- [x] milk"))[0] == "HEARTBEAT_OK"
    assert "- call mum" in (await say("Say HEARTBEAT_OK if all is well.\n- [ ] call mum"))[0]


async def test_echo():
    """The echo model gives back the text, without the line of facts, for measurements and kill tests."""
    text, _ = await say("[Fri, matrix]\nhello there", model=EchoModel())

    assert text == "echo: hello there"


def test_it_is_small_and_offline():
    """Neither module imports anything that can reach a network."""
    for module in (demo_model, rules):
        imported = re.findall(r"^(?:import|from) (\w+)", Path(module.__file__).read_text(), re.MULTILINE)
        assert set(imported) <= {"__future__", "re", "collections", "dataclasses", "anyio", "agent_core"}


FILES = [
    ToolDefinition(name=name, description="", parameters={"type": "object"})
    for name in ("send_file", "read_attachment")
]
ATTACHED = '[Attachment 0123456789ab: "cat.png", image/png, 1.2 kB]'


async def test_it_names_the_files_that_came():
    """Every file of the message, whatever was said with it."""
    text, calls = await say(f"look at these\n{ATTACHED}\n{ATTACHED.replace('cat', 'dog')}")
    assert text.endswith('- "cat.png", image/png, 1.2 kB\n- "dog.png", image/png, 1.2 kB')
    assert calls == []


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("feed the <axolotl>", "You said: “feed the <axolotl>”."),
        ("Hello there", "Hello! I am the demo model"),
    ],
)
async def test_it_answers_what_was_said_by_voice(words, answer):
    """The words and not the sound file; it tells what was heard."""
    heard = transcript_line("Voice message.ogg", text=words, seconds=2.0)
    text, _ = await say(f"{heard}\n{ATTACHED}")
    assert text.startswith(answer)


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("!sendfile notes/plan.txt", "send_file", {"path": "notes/plan.txt"}),
        ("please !sendfile `my plan.txt` now", "send_file", {"path": "my plan.txt"}),
        (f"!sendfile\n{ATTACHED}", "send_file", {"path": "0123456789ab"}),
        (f"!readfile\n{ATTACHED}", "read_attachment", {"id": "0123456789ab"}),
        ("!readfile abcdefabcdef", "read_attachment", {"id": "abcdefabcdef"}),
    ],
)
async def test_it_sends_and_reads_files_by_magic_words(said, name, arguments):
    """A path, one in backticks, or the file that came with the message; without the tools it says so."""
    _, (wish,) = await say(said, tools=FILES)
    assert (wish.name, wish.arguments) == (name, arguments)
    text, calls = await say(said)
    assert (text, calls) == ("I cannot do anything with files here.", [])


WORKING = [
    ToolDefinition(name=name, description="", parameters={"type": "object"})
    for name in ("web_fetch", "write_file", "shell")
]


async def test_it_reads_a_page_into_a_file_and_counts_its_words():
    """One call after the other; what goes wrong is said, and without a tool it says so."""
    ask = "read http://127.0.0.1:1/squids into squids.txt and count its words"
    results = [
        "<web_page>\nhttp://127.0.0.1:1/squids\nEight arms.\n</web_page>",
        "Done.",
        "Exit status 0.\n7",
    ]
    calls = []
    for number in range(4):
        tail = [Message(role="tool", content=each, tool_call_id="x") for each in results[:number]]
        text, made = await say(ask, tools=WORKING, more=tail)
        calls += made
    assert [(each.name, each.arguments) for each in calls] == [
        ("web_fetch", {"url": "http://127.0.0.1:1/squids"}),
        ("write_file", {"path": "squids.txt", "content": "http://127.0.0.1:1/squids\nEight arms.\n"}),
        ("shell", {"command": "wc -w < ../squids.txt"}),
    ]
    assert text.endswith("Exit status 0.\n7")
    failed = Message(role="tool", content="Error: no such page", tool_call_id="x")
    assert "no such page" in (await say(ask, tools=WORKING, more=[failed]))[0]
    assert (await say(ask))[0] == "I have no web_fetch here."
