"""
Parses a SKILL.md: front matter in YAML between two lines of ``---``, then the body. Pure. The file may have
been written by anybody, a model included: it is bounded in size, its name is a plain word that never becomes
a path, and whatever does not fit is `SkillInvalid` with a reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from agent_core.errors import SkillInvalid
from agent_core.text import one_line

MAX_SKILL_BYTES = 64 * 1024
_MAX_FRONT_MATTER_CHARS = 4096
_MAX_DESCRIPTION_CHARS = 1024  # as the published format allows (agentskills.io, "description")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
_REQUIREMENT = re.compile(r"[A-Za-z0-9_.+-]{1,100}")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)\Z", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SkillDocument:
    """The content of a SKILL.md. ``bins`` are programs and ``env`` variables that it requires."""

    name: str
    description: str
    body: str
    always: bool = False
    bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


def parse_skill(raw: bytes) -> SkillDocument:
    """Parse a SKILL.md. Raises `SkillInvalid`, whose reason names what to change."""
    if len(raw) > MAX_SKILL_BYTES:
        raise SkillInvalid(f"is longer than {MAX_SKILL_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise SkillInvalid("is not UTF-8 text") from exc
    match = _FRONT_MATTER.match(text)
    if match is None:
        raise SkillInvalid("does not begin with front matter between two lines of ---")
    fields = _fields(match[1])
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SkillInvalid(f"name must be a word of a-z, 0-9, - and _, not {str(name)[:80]!r}")
    if not isinstance(description, str) or not description.strip():
        raise SkillInvalid("description must be a text")
    always = fields.get("always", False)
    if not isinstance(always, bool):
        raise SkillInvalid("always must be true or false")
    requires = fields.get("requires") or {}
    if not isinstance(requires, dict):
        raise SkillInvalid("requires must be a mapping with bins and env")
    return SkillDocument(
        name=name,
        description=one_line(description, _MAX_DESCRIPTION_CHARS),
        body=match[2].strip("\n"),
        always=always,
        bins=_words(requires.get("bins"), "requires.bins"),
        env=_words(requires.get("env"), "requires.env"),
    )


def _fields(text: str) -> dict[str, Any]:
    if len(text) > _MAX_FRONT_MATTER_CHARS:
        raise SkillInvalid(f"front matter is longer than {_MAX_FRONT_MATTER_CHARS} characters")
    if text.count("[") + text.count("{") > 50:  # seconds go by until so many have no end
        raise SkillInvalid("front matter is nested too deeply")
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise SkillInvalid("front matter is not YAML") from exc
    if not isinstance(fields, dict):
        raise SkillInvalid("front matter must be a mapping")
    return fields


def _words(value: object, what: str) -> tuple[str, ...]:
    words = [] if value is None else value
    if not isinstance(words, list) or len(words) > 20:
        raise SkillInvalid(f"{what} must be a short list")
    for word in words:
        if not isinstance(word, str) or not _REQUIREMENT.fullmatch(word):
            raise SkillInvalid(f"{what} must hold plain names")
    return tuple(words)
