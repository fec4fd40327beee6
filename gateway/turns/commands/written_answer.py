"""
Reads the yes or no that a whole message is: its sign, and what stands in the paragraphs below that. Pure. A
mail's signature, its sender's name and its quotations are none of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agent_core.messages import InboundMessage
from agent_core.text import is_quoted
from gateway.turns.commands.command_parsing import without_name
from gateway.turns.questions.yes_and_no import (
    AnswerReading,
    Sign,
    continues_sentence,
    is_polite,
    is_qualified_answer,
    is_question,
    read_answer,
)

_SIGNATURE = re.compile(r"\n-- ?(?:\n|$)")
_PARAGRAPHS = re.compile(r"\n\s*\n")


def read_written_answer(message: InboundMessage, *, by_mail: bool) -> AnswerReading | None:
    """Read a sign: the whole text, or its first paragraph if no other asks or begins with a no."""
    if not by_mail:
        return None if message.attachments else _read_chat(without_name(message.text.strip(), message))
    text = _SIGNATURE.split(message.text.strip(), maxsplit=1)[0]
    own = own_lines(text)
    lines = own.split("\n")
    while len(lines) > 1 and _is_name(lines[-1], message):
        lines.pop()
    said = read_answer("\n".join(lines))
    later = [each for each in _PARAGRAPHS.split(text.strip()[len(own) :]) if each.strip()]
    return None if said is None else _with_later(said, later, message)


def _read_chat(text: str) -> AnswerReading | None:
    """Read the sign that a text is, or its first paragraph."""
    said = read_answer(text)
    first, *later = _PARAGRAPHS.split(text)
    if not later or (said is not None and said.sign is not Sign.UNCLEAR):
        return said
    said = read_answer(first)
    return None if said is None else _with_later(said, later, None)


def _with_later(said: AnswerReading, later: Sequence[str], mail: InboundMessage | None) -> AnswerReading:
    """Add the paragraphs below a sign; it is unclear if one goes on with it, asks, doubts or commands."""
    own = later if mail is None else [own_lines(each) for each in later]
    wishes = [each for each in later if not _is_closing(each, mail)]
    if (
        continues_sentence("\n".join(later), after_a_no=said.sign is Sign.NO)
        or any(is_question(each) or is_qualified_answer(each) for each in own)
        or any(each.lstrip().startswith(("!", "/", "！")) for each in wishes)
    ):
        return AnswerReading(Sign.UNCLEAR, more="\n\n".join(filter(None, [said.more, *later])))
    return replace(said, more="\n\n".join(filter(None, [said.more, *wishes])).strip())


def _is_closing(paragraph: str, mail: InboundMessage | None) -> bool:
    """Return True for thanks, regards and the same sign again; in a mail for a name and a quotation, too."""
    lines = paragraph.strip().split("\n")
    if mail is not None and any(map(is_quoted, lines)):
        return True
    names = [mail is not None and _is_name(line, mail) for line in lines]
    return read_answer(paragraph) is not None or all(
        is_name or is_polite(line) for is_name, line in zip(names, lines, strict=True)
    )


def _is_name(text: str, message: InboundMessage) -> bool:
    name = f"{message.sender.name} {message.sender.address.partition('@')[0]}".casefold()
    words = re.findall(r"\w+", text.casefold())
    return bool(words) and set(words) <= set(re.findall(r"[^\W_]+", name))


def own_lines(text: str) -> str:
    """The first lines of a mail, up to a blank one or a quotation."""
    lines = []
    for one in text.strip().split("\n"):
        if not one.strip() or one.startswith(">"):
            break
        lines.append(one)
    return "\n".join(lines)
