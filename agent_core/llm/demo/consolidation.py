"""
How the demo model consolidates: it picks sentences and never repeats one. Pure. Sentences with a number, a
name or an address are worth more than others, and small talk is worth nothing. What it picks stands in the
order in which it was said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agent_core.models import Message

_MATERIAL = re.compile(r"\A<(conversation|summary)>\n(.*?)\n?</\1>(.*)", re.DOTALL)
_WHO = re.compile(r"^(USER|ASSISTANT): ", re.MULTILINE)
_ENDS = re.compile(r"(?<=[.!?…])\s+|\n+")
_SMALL_TALK = re.compile(
    r"\W*(ok(ay)?|yes|no|fine|thanks|thank you|hi|hello|hey|moin|hallo|servus|bye|goodbye|help|cheers"
    r"|good (morning|afternoon|evening|day|night)|what(?:'s| is)? (?:the )?(time|date|day)|!\w+( \w+)?)\W*",
    re.IGNORECASE,
)
_TELLING = re.compile(r"\d|://|@|\b(remember|decided|agreed|promised)\b", re.IGNORECASE)
_NAME = re.compile(r"(?<=[a-z,] )[A-ZÄÖÜ]\w+")


def demo_summary(messages: Sequence[Message]) -> str | None:
    """The demo model's summary of a conversation or a summary; None if the request is not a consolidation."""
    asked = messages[-1].content if messages and messages[-1].role == "user" else ""
    if asked.startswith("<recorded>\n"):  # it stays as it is
        asked = asked.partition("\n</recorded>\n")[2].partition("\n\n")[2]
    found = _MATERIAL.search(asked)
    if found is None:
        return None
    if missing := between(found[3], "<missing>\n", "</missing>"):
        return _with_all(found[2], [line.removeprefix("- ") for line in missing.splitlines()])
    if found[1] == "summary":
        return " ".join(_best(_sentences([found[2]])))
    picked = _best(_sentences(_said_by_user(found[2])))
    return f"The user said: {' '.join(picked)}" if picked else "Nothing of note was said."


def between(text: str, opening: str, closing: str) -> str:
    """The text between the first ``opening`` and the ``closing`` after it; empty without both."""
    inner, found, _ = text.partition(opening)[2].partition(closing)
    return inner if found else ""


def _said_by_user(conversation: str) -> list[str]:
    """The messages of the user; each may have several lines."""
    parts = _WHO.split(conversation)
    return [text for who, text in zip(parts[1::2], parts[2::2], strict=True) if who == "USER"]


def _sentences(texts: Iterable[str]) -> list[str]:
    """The sentences of these texts, each once, without small talk, and each with an end."""
    found: dict[str, str] = {}
    for text in texts:
        for sentence in _ENDS.split(text.removeprefix("The user said: ")):
            short = " ".join(sentence.removeprefix("The user said: ").split())[:300]
            if short and not _SMALL_TALK.fullmatch(short):
                found.setdefault(short.casefold().rstrip(".!?…"), short)
    return [text if text[-1] in ".!?…" else f"{text}." for text in found.values()]


def _best(sentences: Sequence[str]) -> list[str]:
    """Those that tell most, in their order."""
    worth = sorted(range(len(sentences)), key=lambda at: (-_worth(sentences[at]), at))
    return [sentences[at] for at in sorted(worth[:8])]


def _worth(sentence: str) -> int:
    asked = sentence.endswith("?")
    return 2 * bool(_TELLING.search(sentence)) + bool(_NAME.search(sentence)) - asked


def _with_all(conversation: str, missing: Sequence[str]) -> str:
    """The sentences in which the missing things stand; where there is none, the things as they were told."""
    whole = _sentences([_WHO.sub("", conversation)])
    chosen: list[str] = []
    for wanted in (" ".join(line.split()).rstrip(".") for line in missing):
        if not wanted or any(wanted in sentence for sentence in chosen):
            continue
        chosen.append(next((sentence for sentence in whole if wanted in sentence), f"{wanted}."))
    return " ".join(chosen)
