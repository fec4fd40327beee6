"""Which messages are commands: the rules of `gateway.turns.commands`, and that no text at all breaks them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from gateway.operations.render import chat_text
from gateway.system.terminal_text import span
from gateway.turns import commands
from gateway.turns.commands import COMMANDS, Command, Misread, parse_command
from gateway.turns.commands.command_table import LISTS, SYNONYMS, Takes
from gateway.turns.commands.command_text import and_list, help_text
from tests.clock import EPOCH
from tests.rows import rows


def message(text: str, **changes: Any) -> InboundMessage:
    given_: dict[str, Any] = {
        "channel": "matrix",
        "account": "@bot:hs.test",
        "native_id": "$1",
        "session": SessionKey("matrix", "!room:hs.test"),
        "sender": Sender(address="@ann:hs.test", verified=True),
        "text": text,
        "received_at": EPOCH,
    }
    return InboundMessage(**{**given_, **changes})


def in_group(text: str, **changes: Any) -> InboundMessage:
    return message(text, audience=Audience.GROUP, **changes)


@rows("name", sorted(LISTS))
def test_list_behind_a_command_that_lists_means_the_same(name: str) -> None:
    """The control is a command that takes any word."""
    for text in (f"!{name} list", f"/{name} List."):
        assert parse_command(message(text)) == Command(name)
    assert parse_command(message(f"!{name} lists")) == Command(name, "lists")
    assert parse_command(message("!search list")) == Command("search", "list")
    assert parse_command(message("!trust list")) == Command("trust", "list")


@rows("name", sorted(COMMANDS.keys() - {"search"}))
def test_help_behind_a_command_is_about_it(name: str) -> None:
    """As on a command line; the control is a search, which takes any word, and a text that begins so."""
    for text in (f"!{name} help", f"!{name} Help?", f"/{name} --help"):
        assert parse_command(message(text)) == Command("help", name)
    assert parse_command(message("!search help")) == Command("search", "help")
    assert parse_command(message("!remind help Tom at 9")) == Command("remind", "help Tom at 9")


@rows("name", sorted(COMMANDS))
@rows("mention", ["@bot", "@Bot", "@bot:hs.test"])
def test_a_mention_of_the_bot_at_the_end_of_a_command_is_no_part_of_it(name: str, mention: str) -> None:
    """A client puts it there while one types; alone or with commas, in private and in a group."""
    for make in (message, in_group):
        assert parse_command(make(f"!{name} {mention}")) == Command(name)
        if name in LISTS:
            assert parse_command(make(f"!{name} list, {mention}")) == Command(name)
    assert parse_command(message("!remind list bot")) == Command("remind")
    assert parse_command(message(f"!remind 9:00 call Tom {mention}")) == Command("remind", "9:00 call Tom")


def test_other_words_at_the_end_of_a_command_stay() -> None:
    """The control: a name that is a word of the text, somebody else, and an address that ends like the name."""
    for words in ("9:00 feed the bot", "list @robot", "9:00 write tom@bot", "list @tom"):
        assert parse_command(message(f"!remind {words}")) == Command("remind", words)
    assert parse_command(message("!search bot")) == Command("search", "bot")


@rows("form", ["!{}", "/{}", "！{}", "! {}", "  !{}  ", "\n!{}\n\n"])
def test_a_word_alone_is_a_command(form: str) -> None:
    """Each command with each sign, in any case, with blanks around it."""
    for name in COMMANDS:
        assert parse_command(message(form.format(name))) == Command(name)
        assert parse_command(message(form.format(name.upper()))) == Command(name)


@rows(
    "text",
    [
        "",
        "!",
        "! new idea",
        "! nwe",
        "/ new",
        "!!new",
        "hello !new",
        "> !stop\n\nwhy?",
        "`!new`",
        "```\n!new\n```",
        "!important",
        "!news",
        "/etc/hosts",
        "/me waves",
        "!new/old",
        "!now",
        "!he",
        "-!stop",
        "new",
        "!important: buy milk",
        "!hlep me with this",
        "!hlep me",
        "!modle railways are fun",
        "!exprot it now",
        "!nëw",
        "!slow",
        "!empty",
        "!long",
        "!reboot",
        "!version",
        "/settings",
        "!todo",
    ],
)
def test_what_is_no_command(text: str) -> None:
    """Text, quotations, code, paths and unknown words are left to the model."""
    found = parse_command(message(text))
    assert found is None or (text == "!news" and isinstance(found, Misread)), found


@rows(
    ("text", "meant"),
    [
        ("!hlep", "help"),
        ("!stpo", "stop"),
        ("!nwe", "new"),
        ("!statsu", "status"),
        ("/memry", "memory"),
        ("!usagee", "usage"),
        ("!aprove", "approve"),
        ("!Stoq", "stop"),
        ("!serach trains", "search"),
        ("!exprot", "export"),
        ("!modle hard", "model"),
        ("!contine 2", "continue"),
        ("!aprove d12", "approve"),
        ("!modl", "model"),
        ("!reminders", "remind"),
        ("!reminder tomorrow at 8 milk", "remind"),
        ("!approvals", "approve"),
        ("!helpme", "help"),
        ("/job", "jobs"),
    ],
)
def test_a_slip_of_the_finger_is_told(text: str, meant: str) -> None:
    """One letter wrong, missing, too many, or two exchanged, alone in a message: the command that was meant."""
    found = parse_command(message(text))
    assert isinstance(found, Misread)
    assert found.meant == meant
    assert "\n" not in found.text


@rows("text", ["/start", "!commands", "! commands", "/Start", "!commands\n"])
def test_what_starts_another_bot_shows_the_help(text: str) -> None:
    assert parse_command(message(text)) == Command("help")


@rows(
    ("text", "meant"),
    [
        ("!delete", "undo"),
        ("!delete my address", "undo"),
        ("/list", "remind"),
        ("!cancel", "stop"),
        ("!cost", "usage"),
    ],
)
def test_a_command_of_another_bot_names_what_does_it(text: str, meant: str) -> None:
    """A model that reads it may claim that it is done; the control is a word that no bot has."""
    found = parse_command(message(text))
    assert isinstance(found, Misread) and found.meant == meant
    assert f"`!{meant}` (" in found.text and found.text.endswith("Nothing was done.")
    assert parse_command(message("!frobnicate")) is parse_command(message("/start the car")) is None
    assert all(name in COMMANDS for names in SYNONYMS.values() for name in names)
    assert not SYNONYMS.keys() & COMMANDS.keys()


def test_more_than_a_command_takes_is_not_done() -> None:
    """`!new idea` may be a sentence: it is neither done nor given to a model."""
    for text in ("!new idea: trains", "!model of trains", "!approve d1 d2"):
        assert isinstance(parse_command(message(text)), Misread)


def test_what_stands_after_a_command() -> None:
    """Arguments are kept as written, `!stop` takes anything, signs behind the word are passed over."""
    assert parse_command(message("!approve d12")) == Command("approve", "d12")
    assert parse_command(message("!reject d12 Too long.")) == Command("reject", "d12 Too long.")
    assert parse_command(message("!stop, please")) is None
    assert parse_command(message("!stop please!")) == Command("stop", "please!")
    assert parse_command(message("!STOP!!!")) == Command("stop")
    assert parse_command(message("!help?")) == Command("help")


def test_further_lines_are_noticed() -> None:
    """A command with text below it is done, and somebody will tell that the rest was not read."""
    assert parse_command(message("!new\nWhat is the time?")) == Command("new", more=True)


@rows("owner", [True, False])
def test_help_in_a_room_says_that_the_name_comes_first(owner: bool) -> None:
    """Where a name is necessary; the name of a bot cannot imitate our own text."""
    assert "with my name first: `Rosie: !remind tomorrow at 8 TEXT`." in help_text(
        "", owner=owner, name="Rosie"
    )
    assert help_text("remind", owner=owner, name="R`s").endswith("write my name first: `R's: !remind`.")
    assert "my name first" not in help_text("", owner=owner) + help_text("remind", owner=owner)


class TestLetters:
    @rows("name", COMMANDS)
    def test_each_command_is_one_in_the_first_line(self, name: str) -> None:
        """And each is told by `!help`, with what it does."""
        assert parse_command(message(f"!{name}\n\n-- \nAnn"), email_style=True) == Command(name)
        assert help_text(name, owner=True).startswith(f"`!{name}`: ")
        assert name == "help" or f"- `!{name}`: " in help_text("", owner=True)

    @rows("text", ["!new\n\n-- \nAnn", "\n\n!New\nBest regards\nAnn", "!new"])
    def test_the_first_line_alone(self, text: str) -> None:
        """In a letter the first line that is not blank is the command; greeting and signature do not matter."""
        assert parse_command(message(text), email_style=True) == Command("new")

    @rows("text", ["Hello\n!new", "!new idea\n", "!hlep\n\nI cannot log in.", "Dear bot, !new", "> !new"])
    def test_anything_else_is_a_letter(self, text: str) -> None:
        """A line with more in it, or a slip above a text, is read as a letter."""
        assert parse_command(message(text), email_style=True) is None

    @rows(
        ("text", "meant"),
        [
            ("!hlep", "help"),
            ("!serach trains\n", "search"),
            ("!remnd at 9 call\n\nSent from my iPhone", "remind"),
        ],
    )
    def test_a_slip_that_is_all_of_it_is_told(self, text: str, meant: str) -> None:
        """A model could only guess, and whoever wrote it would wait for the wrong answer."""
        found = parse_command(message(text), email_style=True)
        assert isinstance(found, Misread)
        assert found.meant == meant


class TestGroups:
    @rows(
        "text",
        [
            "!new",
            "@bot:hs.test !new",
            "@bot:hs.test: !new",
            "bot: !new",
            "Bot, !new",
            "!new @bot",
            "Rosie: !new",
        ],
    )
    def test_the_name_in_front_is_passed_over(self, text: str) -> None:
        """The bot's address, its local part, and what the channel says it is called."""
        assert parse_command(in_group(text, context={"names": ["Rosie"]})) == Command("new")

    def test_another_name_is_not(self) -> None:
        """What is meant for somebody else is none of ours."""
        assert parse_command(in_group("rosie: !new")) is None
        assert parse_command(in_group("!new", addressed=False)) is None

    def test_in_a_direct_conversation_no_name_is_looked_for(self) -> None:
        """There nobody else can be meant."""
        assert parse_command(message("bot: !new")) is None


@rows("kind", ["tick", "reaction"])
def test_only_messages_are_commands(kind: str) -> None:
    """A check-in or a reaction that says "!stop" stops nothing."""
    assert parse_command(message("!stop", kind=kind)) is None


@given(st.text(max_size=60), st.booleans(), st.booleans())
def test_any_text_is_read(text: str, email_style: bool, group: bool) -> None:
    """Nothing raises; whatever is a command begins with its sign (after a name) and has a known word."""
    given_ = in_group(text, account="bot") if group else message(text)
    found = parse_command(given_, email_style=email_style)
    if isinstance(found, Command):
        assert found.name in COMMANDS
        assert COMMANDS[found.name].takes is not Takes.NOTHING or not found.argument
        assert group or text.lstrip()[0] in "!/！"


@given(st.sampled_from(sorted(COMMANDS)), st.data())
def test_one_slip_is_never_another_command(name: str, data: st.DataObject) -> None:
    """A letter left out of a command makes no other command, so a slip does nothing unasked."""
    place = data.draw(st.integers(0, len(name) - 1))
    found = parse_command(message("!" + name[:place] + name[place + 1 :]))
    # `!grant` without a name only says how it is written.
    assert not isinstance(found, Command) or (name, found) == ("grants", Command("grant"))


def test_words_for_numbers() -> None:
    """Durations and lists as people say them."""
    assert [span(s) for s in (0, 59, 60, 7200, 86_400 * 3)] == [
        "less than a minute",
        "less than a minute",
        "1 minute",
        "2 hours",
        "3 days",
    ]
    assert [and_list(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


@rows("text", ["!remind in 2h ", "!answer a1b2c3d ", "!reject a1b2c3d ", "!search "])
def test_nothing_of_a_command_is_cut_off_in_silence(text: str) -> None:
    """Its line counts whole, or is refused; what stands in further lines is noticed, however far down."""
    whole = parse_command(message(text + "x" * 4000))
    assert isinstance(whole, Command)
    assert whole.argument.endswith("x" * 4000)
    assert isinstance(parse_command(message(text + "x" * 1_000_000)), Misread)
    below = parse_command(message(f"{text}x" + "\n" * 1_000_000 + "and this"))
    assert isinstance(below, Command)
    assert below.more


def test_who_is_in_a_hurry_may_say_as_much_as_they_like() -> None:
    """`!stop` stops, whatever comes behind it."""
    assert isinstance(parse_command(message("!stop " + "please " * 100_000)), Command)


def test_no_answer_in_a_chat_names_a_program_that_is_not_there() -> None:
    """In the texts of commands; what needs the machine says so (`at the machine`)."""
    for page in [*Path(commands.__file__).parent.glob("*.py"), Path(chat_text.__file__)]:
        texts = [
            node.value
            for node in ast.walk(ast.parse(page.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        named = [each for each in texts if "`squidbot " in each and "machine" not in each]
        assert not named, page
