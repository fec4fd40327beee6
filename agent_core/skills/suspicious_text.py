"""
Names the places in a skill that somebody should read before it is used: where a text asks to ignore rules, to
keep something from its reader, to send data away, or hides something. Pure. A hint and never a guarantee: who
wants to deceive writes it in other words, and a harmless text may well use these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import category, normalize

from agent_core.text import one_line

_JOINERS = "\u200c\u200d\ufeff"
# One chooses how the character before it looks; a row of them is nothing but data that nobody sees.
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_GAP = r"\W{1,3}(?:\w{1,30}\W{1,3}){0,5}"
_KINDS = {
    "asks to ignore rules": re.compile(
        r"\b(?:ignor\w{0,4}|disregard|forget|override|bypass|circumvent|vergiss|missachte|umgeh\w{1,3})"
        + _GAP
        + r"(?:instruction|rule|polic|guideline|prompt|safeguard|restriction|approval|anweisung|regel)",
        re.IGNORECASE,
    ),
    "asks to keep something from you": re.compile(
        r"\b(?:do not|don.?t|never|without|nicht|ohne)\W{1,3}(?:\w{1,30}\W{1,3}){0,3}"
        r"(?:tell|mention|inform|notif|ask|show|reveal|confirm|sag|frag|erwähn)\w{0,5}"
        r"\W{1,3}(?:\w{1,30}\W{1,3}){0,2}(?:user|owner|person|any|human|nutzer|benutzer|besitzer)"
        r"|\b(?:secretly|silently|covertly|heimlich)\b",
        re.IGNORECASE,
    ),
    "asks to send data away": re.compile(
        r"\b(?:send|upload|post|forward|exfiltrate|transmit|submit|sende|schicke|übertrage)\b"
        r"[^\n]{0,80}?(?:https?://|\w@\w|webhook|endpoint|server\b)",
        re.IGNORECASE,
    ),
    "talks to other machines": re.compile(
        r"\b(?:curl|wget|ncat|netcat|scp|rsync|sftp|telnet)\s|\brequests\.\w|\burlopen\b|\bfetch\(|/dev/tcp/",
        re.IGNORECASE,
    ),
    "speaks of keys or passwords": re.compile(
        r"\.ssh\b|\bid_(?:rsa|ed25519)|\.env\b|\.aws\b|\.netrc|/etc/shadow|\bapi[ _-]?key|\bpassword"
        r"|\bpasswort|\bprivate key|\bcredential|\bsecrets?\b|_TOKEN\b",
        re.IGNORECASE,
    ),
    "runs code that is not shown": re.compile(
        r"\bbase64\s{1,3}(?:-d|--decode)|\bb64decode|\|\s{0,3}(?:sudo\s)?(?:ba|z|da)?sh\b|\beval\b|\bexec\(",
        re.IGNORECASE,
    ),
    "has a comment that is not shown as text": re.compile("<!--"),
}
_HOST = re.compile(r"\bhttps?://(?:[^\s/@]{1,200}@)?([^\s/:?#\"'<>()\[\]{}`]{1,253})", re.IGNORECASE)


class Suspicion(NamedTuple):
    """A place that somebody should read: its line from 1 on, why, and the words."""

    line: int
    why: str
    words: str


def find_suspicious(text: str) -> Iterator[Suspicion]:
    """The suspicious places of a text, three of each kind at most."""
    unseen = [char for char in text if category(char) in ("Cf", "Co") and char not in _JOINERS]
    unseen += "".join(_SELECTORS.findall(text))
    if unseen:
        line = text.count("\n", 0, text.index(unseen[0])) + 1
        names = ", ".join(f"U+{ord(char):04X}" for char in dict.fromkeys(unseen[:5]))
        yield Suspicion(line, "has characters that nobody sees", names)
        text = "".join(char for char in _SELECTORS.sub("", text) if category(char) not in ("Cf", "Co"))
    text = normalize("NFKC", text)
    for why, pattern in _KINDS.items():
        for number, found in enumerate(pattern.finditer(text)):
            if number == 3:  # enough of a kind
                break
            begins = text.rfind("\n", 0, found.start()) + 1
            words = one_line(text[max(begins, found.start() - 40) : found.end() + 40], 120)
            yield Suspicion(text.count("\n", 0, found.start()) + 1, why, words)


def find_hosts(text: str) -> set[str]:
    """The hosts of the web addresses in a text."""
    return {found.lower().rstrip(".,;") for found in _HOST.findall(text)}
