"""Parses commands: whether a message is one, and which. Pure; the package's docstring has the rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from agent_core.language import _, list_of
from agent_core.messages import Audience, InboundMessage
from gateway.turns.commands.command_table import COMMANDS, LISTS, SYNONYMS, Takes

_WORD = re.compile(
    r"(?:[!/！]|(?P<apart>[!！]\s))([A-Za-z][A-Za-z0-9_-]{0,30})[!.?]{0,5}(?!\S)[^\S\n]*([^\n]*)"
)
_AFTER_NAME = re.compile(r"[\s:,;–—-]*")
_MAX_EXAMINED = 8_000
_LONG_ENOUGH = 5
"""A shorter word with a slip and words behind it is more likely a sentence."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command with the ``argument`` of its line; ``more``: further lines were not read."""

    name: str
    argument: str = ""
    more: bool = False


@dataclass(frozen=True, slots=True)
class Misread:
    """A text that was meant as the command ``meant`` and cannot be run: ``text`` says why."""

    meant: str
    text: str


def is_only_read(message: InboundMessage) -> bool:
    """Return True if the channel says that a message gets no answer."""
    return message.context.read_only


def parse_command(message: InboundMessage, *, email_style: bool = False) -> Command | Misread | None:
    """
    Parse a message as a command, or return None.

    In a group ``context.names`` holds the bot's names. With ``email_style`` the first non-blank line
    counts, if it is nothing but the command.
    """
    overheard = message.audience is Audience.GROUP and not message.addressed
    if message.kind != "message" or overheard or is_only_read(message):
        return None
    text = message.text.lstrip()
    if message.audience is Audience.GROUP:
        text = without_name(text, message)
    text, __, rest = text.partition("\n")
    alone = not rest.strip()
    found = _WORD.match(text[:_MAX_EXAMINED])
    if found is None:
        return None
    word, argument = found[2].lower(), found[3].strip()
    if message.audience is Audience.GROUP:
        argument = without_name(argument, message)
    argument = _without_mention(argument, message)
    more = not (alone or email_style)
    if SYNONYMS.get(word) == ("help",) and not (argument or more):
        word = "help"
    if word in COMMANDS and word != "search" and argument.lower().strip("-?!. ") == "help":
        word, argument = "help", word
    misread = _misread(word, argument, more=more)
    if found["apart"] and misread is not None:
        return None  # a blank behind the sign: a sentence, unless it is a command as it stands
    if misread is None and word in COMMANDS and word != "stop" and len(text.rstrip()) > _MAX_EXAMINED:
        misread = Misread(word, _("That is too long for `!{word}`, so nothing was done.", word=word))
    if misread is None and word in COMMANDS:
        is_list = word in LISTS and argument.rstrip(".!").lower() == "list"
        return Command(word, "" if is_list else argument, more)
    # By mail a signature may stand below; a slip above a letter has nothing behind it.
    return misread if not email_style or ((alone or argument) and word not in COMMANDS) else None


def _misread(word: str, argument: str, *, more: bool) -> Misread | None:
    if word in COMMANDS:
        takes = COMMANDS[word].takes
        text = _(
            "`!{word}` takes {takes} after it, so nothing was done; write it by itself.",
            word=word,
            takes=_(takes),
        )
        return Misread(word, text) if _too_much(takes, argument) else None
    if word in SYNONYMS and not (more or "help" in SYNONYMS[word]):
        here = [f"`!{name}` ({COMMANDS[name].summary})" for name in SYNONYMS[word]]
        told = _(
            "There is no `!{word}`. Did you mean {join}? Nothing was done.",
            word=word,
            join=list_of(here, " or "),
        )
        return Misread(SYNONYMS[word][0], told)
    near = None if more else nearest(word)
    if near is None or (argument and (len(near) < _LONG_ENOUGH or _too_much(COMMANDS[near].takes, argument))):
        return None
    return Misread(
        near,
        _("There is no `!{word}`. Did you mean `!{near}`? Nothing was done.", word=word, near=near),
    )


def _too_much(takes: Takes, argument: str) -> bool:
    words = len(argument.split())
    return (takes is Takes.NOTHING and words > 0) or (takes is Takes.WORD and words > 1)


def _own_names(message: InboundMessage) -> list[str]:
    """The bot's names without ``@``, the longest first."""
    alone = message.account.removeprefix("@").partition(":")[0].partition("@")[0]
    names = {name.removeprefix("@") for name in (*message.context.names, message.account, alone)}
    return sorted(names, key=len, reverse=True)


def _without_mention(argument: str, message: InboundMessage) -> str:
    """The argument before a mention of the bot at its end: its name behind ``@`` or ``list``."""
    for name in filter(None, _own_names(message)):
        before, named = argument[: -len(name)], argument[-len(name) :]
        if named.casefold() == name.casefold() and (
            f" {before}".endswith(" @") or before.lower().rstrip(" ,") == "list"
        ):
            return before.rstrip("@, ")
    return argument


def without_name(text: str, message: InboundMessage) -> str:
    """The text after the bot's own name, if it begins with that."""
    bare = text.removeprefix("@")
    for name in _own_names(message):
        if name and bare[: len(name)].casefold() == name.casefold():
            rest = bare[len(name) :]
            if rest[:1].isascii() and rest[:1].isalnum():
                continue  # a longer word
            if after := _AFTER_NAME.match(rest):
                return rest[after.end() :]
    return text


def nearest(word: str) -> str | None:
    """The command that a word is like: one slip in four letters, a longer form of it, or the same letters."""
    same = (name for name in COMMANDS if word != name and sorted(word) == sorted(name))
    close = (name for name in get_close_matches(word, COMMANDS, 1, 0.75) if name != word)
    return next(same, next(close, None))


def is_stop(command: Command | Misread | None) -> bool:
    """
    Return True for ``!stop``.

    Accepting it withdraws earlier messages of the session, others than the owner's only their sender's own
    (``store/sql/amendments.py``); the signal ``stopped`` lets ``turns/handler.py`` cancel the running turn;
    its own turn answers with the number (`stopped_text`).
    """
    return isinstance(command, Command) and command.name == "stop"
