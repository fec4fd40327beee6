"""The texts for people and their translations: complete, of the same shape, and made in the language that is set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import polib
import pytest

from agent_core.language import (
    _,
    environment_language,
    gettext_noop,
    languages,
    list_of,
    ngettext,
    show_number,
    show_time,
    speaking,
    use_language,
)
from gateway.errors import NotFound
from gateway.operations.operation_context import OperationContext
from gateway.operations.token_operations import make_console_link
from gateway.proactive.jobs.time_grammar import read_when, split_when
from gateway.turns.commands.command_table import COMMANDS
from gateway.turns.commands.command_text import help_text
from gateway.turns.questions.yes_and_no import Sign, read_answer
from tests.catalogue import FOLDER, MARKS, ROOT, product_files, wanted

CATALOGUES = sorted(FOLDER.glob("*.po"))
_FIELD = re.compile(r"\{(\w*)\}")
_COMMAND = re.compile(r"`[!/]\w+|`squidbot [^`]+`")
_PROSE = re.compile(r"[A-Za-z]{2,},? [A-Za-z]|[a-z]{2,}[.:!?](?: |$)")
_LOGS = {"debug", "info", "warning", "error", "exception"}


def chat_modules() -> list[Path]:
    """The modules whose texts are read in conversations."""
    turns, proactive = ROOT / "gateway/turns", ROOT / "gateway/proactive"
    return [
        *(path for path in sorted(turns.rglob("*.py")) if path.name != "yes_and_no.py"),  # words of others
        *(proactive / f"{name}.py" for name in ("owner_alerts", "heartbeat_monitor")),
        *(proactive / "jobs" / f"{name}.py" for name in ("time_grammar", "time_syntax", "trigger_parsing")),
        *(ROOT / "gateway/operations" / f"{name}.py" for name in ("chat_operations", "render/chat_text")),
        *(ROOT / "gateway" / f"{name}.py" for name in ("budget/budget_alerts", "app/mcp_servers")),
        ROOT / "channels/email/parse/unreadable.py",
        ROOT / "channels/matrix/crypto/undecryptable.py",
        *(ROOT / "agent_core" / f"{name}.py" for name in ("provenance", "tools/grants")),
    ]


NOT_FOR_PEOPLE = set((ROOT / "tests/data/not_for_people.txt").read_text(encoding="utf-8").splitlines())
"""Texts of these modules that only models, logs, the ledger or programs read, each by its beginning."""


def is_log(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute) and node.func.attr in _LOGS and "_log" in ast.unparse(node.func)
    )


def unmarked(tree: ast.AST) -> Iterator[str]:
    """The sentences of a module that no call marks for the catalogue; not its docstrings, nor what it logs."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if is_log(node):
                continue
            if name in MARKS | {"ngettext"}:
                waiting += [keyword.value for keyword in node.keywords]
                continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield from (text for text in ["".join(map(str, parts))] if _PROSE.search(text))
            waiting += [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        elif isinstance(node, ast.Constant):
            yield from (text for text in [node.value] if isinstance(text, str) and _PROSE.search(text))
        else:
            waiting += ast.iter_child_nodes(node)


def test_every_text_for_people_is_marked() -> None:
    """What is not is listed as being for somebody else; nothing in that list is out of date."""
    found = {
        text[:60].replace("\n", " ")
        for path in chat_modules()
        for text in unmarked(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found - NOT_FOR_PEOPLE == set()
    assert NOT_FOR_PEOPLE - found == set()


def test_an_unmarked_text_is_found() -> None:
    """The control: bare, in an f-string and as a value of a marked one; not what is marked or logged."""
    source = """
    '''A docstring is none.'''
    def told(name):
        _log.info("this is logged")
        x = _("This is marked.") + gettext_noop("So is this.")
        y = f"Hello my {name}" if name else "Nobody is here."
        return _("{a}", a="and a value")
    """
    tree = ast.parse("def outer():" + source)
    assert set(unmarked(tree)) == {"Hello my {}", "Nobody is here.", "and a value"}


def test_a_marked_text_is_translated_where_it_is_part_of_another() -> None:
    """What is returned as it is, is translated by whoever sends it; the control: both ways to forget that."""
    assert [
        (path.name, found)
        for path in chat_modules()
        for found in untranslated(ast.parse(path.read_text(encoding="utf-8")))
    ] == [("scheduled_job_turn.py", "OVERHEARD")]  # the operator reads that one
    source = (
        "_A = gettext_noop('a')\ndef told(x):\n    return f'{x}, {_A}' + _('b {a}', a=_A) + _('{a}', a=_(_A))"
    )
    assert list(untranslated(ast.parse(source))) == ["_A", "_A"]


def untranslated(tree: ast.Module) -> Iterator[str]:
    """Each constant of a module that is marked and put into a text as it is."""
    marked = {
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "gettext_noop"
    }
    for node in ast.walk(tree):
        put = node.value if isinstance(node, ast.FormattedValue | ast.keyword) else None
        if isinstance(put, ast.Name) and put.id in marked and getattr(node, "arg", "") != "public":
            yield put.id


def test_no_text_is_made_when_a_module_is_loaded() -> None:
    """It would be English for good; there `gettext_noop` marks it."""
    assert [
        (path.name, line)
        for path in product_files()
        if "agent_core.language import" in (source := path.read_text(encoding="utf-8"))
        for line in made_on_import(ast.parse(source))
    ] == []
    assert list(made_on_import(ast.parse("_A = _('a')\nclass B:\n    c = ngettext('d', 'e', 1)\n"))) == [1, 3]


def made_on_import(tree: ast.AST) -> Iterator[int]:
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("_", "ngettext")
        ):
            yield node.lineno
        waiting += ast.iter_child_nodes(node)


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.stem)
def test_a_catalogue_is_complete(path: Path) -> None:
    """Every text of the source and no other, each translated, none doubtful; `python -m tests.catalogue` helps."""
    catalogue = polib.pofile(str(path))
    assert {entry.msgid: entry.msgid_plural or "" for entry in catalogue} == wanted()
    assert [entry.msgid for entry in catalogue.untranslated_entries()] == []
    assert [entry.msgid for entry in (*catalogue.fuzzy_entries(), *catalogue.obsolete_entries())] == []


def differences(english: str, other: str) -> list[str]:
    """In which ways a translation has another shape than its text."""
    return [
        name
        for name, look in {
            "placeholders": lambda text: set(_FIELD.findall(text)),
            "commands": lambda text: sorted(set(_COMMAND.findall(text)) - {"`!persona"}),
            "code marks": lambda text: text.count("`"),
            "blanks at the ends": lambda text: (text[:1].isspace(), text[-1:].isspace()),
            "breaks": lambda text: text.count("\n"),
            "promise of another try": lambda text: ";" in text if "I will try again" in english else None,
            "first sentence": lambda text: ". " in text if english in SUMMARIES else None,
        }.items()
        if look(english) != look(other)
    ]


SUMMARIES = {each.text for each in COMMANDS.values()}


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.stem)
def test_a_translation_has_the_shape_of_its_text(path: Path) -> None:
    found = {
        entry.msgid: wrong
        for entry in polib.pofile(str(path))
        for english, other in (
            zip((entry.msgid, entry.msgid_plural), entry.msgstr_plural.values(), strict=True)
            if entry.msgid_plural
            else [(entry.msgid, entry.msgstr)]
        )
        if (wrong := differences(english, other)) and not (entry.msgid_plural and wrong == ["placeholders"])
    }
    assert found == {}


def test_each_difference_is_noticed() -> None:
    """The control."""
    assert differences("{a} `!stop`", "{b} `!stop`") == ["placeholders"]
    assert differences("`!stop` it", "`!stopp` es") == ["commands"]
    assert differences("a\n", "a") == ["blanks at the ends", "breaks"]
    assert differences("busy; I will try again.", "besetzt, gleich wieder.") == ["promise of another try"]
    assert differences("`a`", "a") == ["code marks"]


def test_placeholders_are_names() -> None:
    """No attribute, index or format can be reached by a template."""
    for text in wanted():
        assert text == ",." or re.fullmatch(r"(?:[^{}]|\{[a-z_0-9]+\})*", text), text


def test_a_text_is_made_in_the_language_that_is_set() -> None:
    """Also by tasks that begin inside; English outside, for an unknown language, and for an unknown text."""
    text, told = "Nothing waits for your decision.", []

    async def tell() -> None:
        told.append(_(text))

    async def begin() -> None:
        async with anyio.create_task_group() as tasks:
            with speaking("de"):
                tasks.start_soon(tell)
                await tell()
            tasks.start_soon(tell)

    anyio.run(begin)
    assert sorted(told) == ["Nichts wartet auf deine Entscheidung."] * 2 + [text]
    with use_language("de"):
        assert _(text) == "Nichts wartet auf deine Entscheidung."
        with speaking("en"):
            assert _(text) == text
            with speaking(""):
                assert _(text) != text
    assert _(text) == text
    for language in ("fr", "../de", "en"):
        with speaking(language):
            assert _(text) == text
    with speaking("de"):
        assert _("A text of tomorrow with {n}.", n=3) == "A text of tomorrow with 3."
        assert _("") == ""
    assert languages() == ["de", "en"]


async def test_what_an_operator_calls_is_english() -> None:
    """Over the control socket and in the console; the same operation answers in a conversation in German."""
    context = OperationContext(None, None)  # type: ignore[arg-type]
    with use_language("de"):
        with pytest.raises(NotFound, match="I have no console"):
            await context.call("console_link", {})
        with pytest.raises(NotFound, match="ich habe keine Konsole"):
            await make_console_link(context)


def test_words_of_others_are_no_template() -> None:
    """They are values, and stay as they are."""
    evil = "{who.__class__} %s {0} {text}"
    for language in languages():
        with speaking(language):
            assert _("{who} says: {text}", who="a", text=evil).endswith(f": {evil}")
            assert ngettext("1 message", "{n} messages", 2).startswith("2 ")


def test_times_and_numbers_read_as_in_their_language() -> None:
    at = datetime(2026, 11, 29, 14, tzinfo=ZoneInfo("Europe/Berlin"))
    pattern = gettext_noop("%a %Y-%m-%d %H:%M %Z")
    assert show_time(at, pattern) == "Sun 2026-11-29 14:00 CET"
    assert (show_number(1234567), show_number(0.5, 2)) == ("1,234,567", "0.50")
    with speaking("de"):
        assert show_time(at, pattern) == "So., 29. Nov. 2026, 14:00 Uhr MEZ"
        assert show_time(at.replace(month=5, day=3), pattern) == "So., 3. Mai 2026, 14:00 Uhr MESZ"
        assert (
            show_time(at.astimezone(ZoneInfo("Asia/Tokyo")), pattern) == "So., 29. Nov. 2026, 22:00 Uhr JST"
        )
        assert show_time(at.astimezone(UTC), "%H:%M on %d %B") == "29. November, 13:00 Uhr"
        assert (show_number(1234567), show_number(0.5, 2)) == ("1.234.567", "0,50")
        assert list_of(["a", "b", "c"]) == "a, b und c"
        assert (ngettext("{n} day", "{n} days", 1), ngettext("{n} day", "{n} days", 2)) == ("1 Tag", "2 Tage")


def test_the_language_of_an_environment() -> None:
    assert environment_language({"LANG": "de_AT.UTF-8"}) == "de"
    assert environment_language({"LANG": "de_DE", "LC_ALL": "en_GB.UTF-8"}) == ""
    assert (
        environment_language({"LANG": "C.UTF-8"})
        == environment_language({})
        == environment_language({"LANG": "xx"})
        == ""
    )


def test_what_german_texts_ask_for_is_understood() -> None:
    """The times of the examples, and the words of an answer; every command has its line in the help."""
    with speaking("de"):
        told = help_text("", owner=True)
        assert "- `!stop`: stoppt, was ich hier tue\n" in told
        assert all(f"`!{name}`" in told for name in COMMANDS if name != "help")
        assert split_when("morgen um 8 Tom anrufen") == ("morgen um 8", "Tom anrufen")
        read_when("jeden tag 09:00")
        for text in (_("tomorrow at 8"), "in 2h"):
            read_when(text)
        yes, no = re.findall(r"`(\w+)`", _("`yes` / `no`"))
        hour = re.findall(r"`([^`]+)`", _("`yes` / `no` / `yes for an hour`"))[2]
    assert read_answer(yes).sign is Sign.YES
    assert read_answer(no).sign is Sign.NO
    assert read_answer(hour).span
    assert read_answer(f"{yes} zu allen").sign is Sign.YES
