"""Commands of conversations that are operations: their declarations, who may use them, and their answers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.messages import Audience, SessionKey
from agent_core.operation import Who
from gateway.operations.chat_operations import ChatOperations, chat_forms
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_registry import IN_CHATS, all_operations
from gateway.operations.render import chat_text
from gateway.operations.usage_operations import receipt_json
from gateway.store.model import EffectReceipt, ReceiptOutcome
from gateway.turns.commands import COMMANDS, Command
from gateway.turns.commands.chat_command_context import NOT_HERE, CommandContext
from gateway.turns.commands.command_table import Takes
from gateway.turns.commands.command_text import help_text
from tests.inbound import inbound

FORMS = [(word, form, each) for word in IN_CHATS for form, each in chat_forms(word)]


class Touched(BaseException):
    """A part of the gateway was used."""


class Untouchable:
    def __getattr__(self, name: str) -> Any:
        raise Touched(name)


async def answered(text: str, *, owner: bool) -> str:
    """The answer to a command, where no part of the gateway may be used."""
    word, _, argument = text.partition(" ")
    message = inbound(
        SessionKey("matrix", "!r"),
        "@bob:hs.test",
        f"!{text}",
        account="@bot:hs.test",
        audience=Audience.DIRECT,
    )
    turn: Any = SimpleNamespace(id="t", session=message.session, place=message.session)
    session: Any = SimpleNamespace(id="matrix/!r", since=None)
    part: Any = Untouchable()
    asked = CommandContext(Command(word, argument), turn, message, session, owner=owner, is_owner=owner)
    return await ChatOperations(OperationContext(part, part, access=part), ()).answer(asked)


def test_every_form_is_found_and_is_a_command() -> None:
    """The table of commands, the help and the declarations name the same."""
    declared = {form.words for each in all_operations().values() for form in each.chats}
    assert declared == {form.words for _, form, _ in FORMS}
    assert IN_CHATS.keys() <= COMMANDS.keys()
    for word in IN_CHATS:
        whose = {form.who for each, form, _ in FORMS if each == word}
        assert len(whose) == 1
        assert help_text(word, owner=False).endswith("Only my owner may do that.") is (whose == {Who.OWNER})
        takes_more = any(each == word and " " in form.words for each, form, _ in FORMS)
        assert COMMANDS[word].takes is (Takes.ANYTHING if takes_more else Takes.NOTHING)


@pytest.mark.parametrize("form", [form for _, form, _ in FORMS if form.who is Who.OWNER])
async def test_what_the_owner_alone_may_do_touches_nothing_for_others(form: Any) -> None:
    """The control: for the owner it uses a part, or says that the part is missing."""
    typed = form.words.replace("NUMBER", "1")
    assert await answered(typed, owner=False) == NOT_HERE
    try:
        said = await answered(typed, owner=True)
    except Touched:
        return
    assert said != NOT_HERE


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("jobs kill 3", "Write `!jobs`, `!jobs show ID` or `!jobs stop ID`. Nothing was done."),
        ("jobs stop", "Write `!jobs`, `!jobs show ID` or `!jobs stop ID`. Nothing was done."),
        ("grants revoke", "Write `!grants`, or `!grants revoke ID`. Nothing was done."),
        ("files undo two", "Write `!files`, or `!files undo NUMBER`. Nothing was done."),
        (f"files undo {'9' * 30}", "Write `!files`, or `!files undo NUMBER`. Nothing was done."),
        (f"files undo {'9' * 5000}", "Write `!files`, or `!files undo NUMBER`. Nothing was done."),
        ("files undo 1 2", "Write `!files`, or `!files undo NUMBER`. Nothing was done."),
    ],
)
async def test_what_is_no_form_is_answered_with_the_forms(typed: str, said: str) -> None:
    """And nothing is touched."""
    assert await answered(typed, owner=True) == said


def shown_receipt(receipt: EffectReceipt, *, owner: bool) -> str:
    return chat_text.about_receipt(receipt_json(receipt), owner=owner)


def test_costs_as_people_say_them() -> None:
    """One call is no calls, and money is told where it is known."""
    row = {"prompt_tokens": 1000, "completion_tokens": 234, "calls": 2, "cost_usd": 0.5}
    assert chat_text.about_usage(row) == "1,234 tokens in 2 calls, 0.50 USD"
    one = {"prompt_tokens": 3, "completion_tokens": 0, "calls": 1, "cost_usd": None}
    assert chat_text.about_usage(one) == "3 tokens in 1 call"


def test_lines_of_what_a_tool_was_given_are_told_apart() -> None:
    """A line break becomes a blank; what cannot be printed and what ends the quotation is left out."""
    done = EffectReceipt(
        SessionKey("matrix", "!r"), "write_file", "write", {"text": "one\ntwo\r\n\tth`r\x1bee"}, "@a:b"
    )
    assert "`write_file: text one two three`" in shown_receipt(done, owner=True)


@pytest.mark.parametrize(
    ("undo", "owners", "others"),
    [
        ("squidbot files undo 3", "`!files undo 3`", "ask my owner"),
        ("squidbot memory undo owner --to 2", "`!memory undo 2`", "`!memory undo 2`"),
        ("squidbot memory undo 'room:matrix/!r' --to 0", "`!memory undo 0`, in that conversation", "`!memory undo 0`"),
        ("squidbot cron remove ab12", "`!remind cancel ab12`", "`!remind cancel ab12`"),
        ("squidbot cron resume ab12", "tell me to resume `ab12`", "tell me to resume `ab12`"),
        ("squidbot jobs stop j1", "`!jobs stop j1`", "`!jobs stop j1`"),
        ("POST /undo/3", "`POST /undo/3`", "`POST /undo/3`"),
    ],
)  # fmt: skip
def test_something_is_undone_where_one_reads_of_it(undo: str, owners: str, others: str) -> None:
    """By a command of the chat or in words; the last is what a plugin says."""
    row = EffectReceipt(SessionKey("matrix", "!r"), "t", "write", {}, "@a:b", undo=undo)
    told = [shown_receipt(row, owner=owner).partition("undo: ")[2] for owner in (True, False)]
    assert told == [owners, others]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("Exit status 0. 3 costs.csv", "done"),
        ("Exit status 3. ls: cannot access", "exit status 3"),
        ("Ended before it was done: it took longer than 20 seconds. It printed nothing.",
         "ended before it was done: it took longer than 20 seconds"),
        ("Ended by signal 11.", "ended by signal 11"),
        ("anything else. `rm`", "done"),
    ],
)  # fmt: skip
def test_a_command_that_did_not_succeed_is_not_called_done(result: str, shown: str) -> None:
    """What it has printed is left out; of another tool nothing changes."""
    row = EffectReceipt(SessionKey("matrix", "!r"), "shell", "execute", {"command": "x"}, "@a:b", told=result)
    done = replace(row, outcome=ReceiptOutcome.DONE)
    assert shown_receipt(done, owner=True).endswith(f"; {shown}")
    assert shown_receipt(replace(done, tool="t"), owner=True).endswith("; done")


def test_files_of_commands_are_listed_with_the_changes() -> None:
    """Each in a line of its own, whatever its name is."""
    none: dict[str, Any] = {"changes": [], "made_by_commands": []}
    assert chat_text.changes_text(none, Who.OWNER) == "I have changed no files."
    made = {**none, "made_by_commands": ["work/a", "work/`b`\n- 1: `c` written"]}
    assert chat_text.changes_text(made, Who.OWNER).splitlines()[2:] == [
        "- `work/a`",
        "- `work/'b' - 1: 'c' written`",
    ]
