"""
Parses a SKILL.md: front matter in YAML between two lines of ``---``, then the body. Pure. The file may have
been written by anybody, a model included: it is bounded in size, its name is a plain word that never becomes
a path, and whatever does not fit is `SkillInvalid` with a reason. What other programs would refuse by the
published format (agentskills.io/specification), and is usable here all the same, is a departure from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

import yaml

from agent_core.errors import SkillInvalid
from agent_core.text import is_visible, one_line

MAX_SKILL_BYTES = 256 * 1024
_MAX_FRONT_MATTER_CHARS = 8192
_MAX_DESCRIPTION_CHARS = 1024
_MAX_COMPATIBILITY_CHARS = 500
_PUBLISHED = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
_OURS = frozenset({"always", "requires"})
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_REQUIREMENT = re.compile(r"[A-Za-z0-9_.+-]{1,100}")
_PROSE = re.compile(r"^(description:[ \t]+)([^\s\"'>|&*!\[{][^\n]*:[ \t][^\n]*)$", re.MULTILINE)
_UNQUOTED = "description: with a colon in it, it needs quotes"
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)\Z", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SkillDocument:
    """
    The content of a SKILL.md.

    Args:
        bins, env: Programs and variables that it requires.
        allowed_tools: Tools that its author wants pre-approved; squidbot asks about them as always.
        departures: Where it is not in the published format, a sentence each.
    """

    name: str
    description: str
    body: str
    always: bool = False
    bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()


def parse_skill(raw: bytes, folder: str = "") -> SkillDocument:
    """Parse the SKILL.md of a ``folder`` of this name. Raises `SkillInvalid`: what to change."""
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
    description = fields.get("description")
    if not isinstance(description, str) or not is_visible(description):
        raise SkillInvalid("description must be a text")
    always = _TRUTH.get(str(fields.get("always", "false")).lower())
    if always is None:
        raise SkillInvalid("always must be true or false")
    requires = fields.get("requires") or {}
    if not isinstance(requires, dict):
        raise SkillInvalid("requires must be a mapping with bins and env")
    name = _name(fields.get("name"))
    return SkillDocument(
        name=name,
        description=one_line(description, _MAX_DESCRIPTION_CHARS),
        body=match[2].strip("\n"),
        always=always,
        bins=_words(requires.get("bins"), "requires.bins"),
        env=_words(requires.get("env"), "requires.env"),
        license=_text(fields.get("license")),
        compatibility=_text(fields.get("compatibility")),
        allowed_tools=_tools(fields.get("allowed-tools")),
        departures=(*([_UNQUOTED] if _PROSE.search(match[1]) else ()), *_departures(fields, name, folder)),
    )


def _name(value: object) -> str:
    """A word of lower-case letters of any script, digits, - and _, in the form that is compared."""
    name = normalize("NFKC", value.strip()) if isinstance(value, str) else ""
    plain = all(char.isalnum() or char in "-_" for char in name) and name == name.lower()
    if not plain or not name or len(name) > 64 or {name[0], name[-1]} & {"-", "_"}:
        raise SkillInvalid(f"name must be a word of a-z, 0-9 and -, not {str(value)[:80]!r}")
    return name


def _departures(fields: Mapping[str, Any], name: str, folder: str) -> Iterator[str]:
    if own := sorted(_OURS & fields.keys()):
        yield f"{', '.join(own)}: squidbot's own; other programs may refuse the file for it"
    if more := sorted(fields.keys() - _PUBLISHED - _OURS):
        yield f"not in the format: {one_line(', '.join(more), 200)}"
    if "_" in name or "--" in name:
        yield "name: only a-z, 0-9 and single hyphens"
    if folder and normalize("NFKC", folder) != name:
        yield f"name: the folder should be called {name}"
    if len(fields["description"]) > _MAX_DESCRIPTION_CHARS:
        yield f"description: at most {_MAX_DESCRIPTION_CHARS} characters"
    fits = fields.get("compatibility", "-")
    if not isinstance(fits, str) or not 0 < len(fits) <= _MAX_COMPATIBILITY_CHARS:
        yield f"compatibility: a text of at most {_MAX_COMPATIBILITY_CHARS} characters"
    if not isinstance(fields.get("license", ""), str):
        yield "license: a text"
    more = fields.get("metadata", {})
    if not isinstance(more, dict) or not all(isinstance(each, str) for each in more.values()):
        yield "metadata: names with a text each"
    tools = fields.get("allowed-tools", "")
    if not all(isinstance(each, str) for each in (tools if isinstance(tools, list) else [tools])):
        yield "allowed-tools: names with blanks between, or a list of them"


def _fields(text: str) -> dict[str, Any]:
    if len(text) > _MAX_FRONT_MATTER_CHARS:
        raise SkillInvalid(f"front matter is longer than {_MAX_FRONT_MATTER_CHARS} characters")
    if text.count("[") + text.count("{") > 50:  # seconds go by until so many have no end
        raise SkillInvalid("front matter is nested too deeply")
    try:
        # Every value is the text that stands there: a name may be 7, and a version 1.10.
        fields = _loaded(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise SkillInvalid("front matter is not YAML") from exc
    if not isinstance(fields, dict) or not all(isinstance(each, str) for each in fields):
        raise SkillInvalid("front matter must be a mapping")
    return fields


def _loaded(text: str) -> Any:
    """Load YAML, whose prose may have colons without quotes, as in half of what people publish."""
    try:
        return yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings only
    except yaml.YAMLError:
        quoted = _PROSE.sub(lambda found: f"{found[1]}{json.dumps(found[2], ensure_ascii=False)}", text)
        return yaml.load(quoted, yaml.BaseLoader)  # noqa: S506 - likewise


def _text(value: object) -> str:
    return one_line(value, _MAX_COMPATIBILITY_CHARS) if isinstance(value, str) else ""


def _tools(value: object) -> tuple[str, ...]:
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(one_line(word, 100) for word in words[:50] if isinstance(word, str))


def _words(value: object, what: str) -> tuple[str, ...]:
    words = value or []
    if not isinstance(words, list) or len(words) > 20:
        raise SkillInvalid(f"{what} must be a short list")
    for word in words:
        if not isinstance(word, str) or not _REQUIREMENT.fullmatch(word):
            raise SkillInvalid(f"{what} must hold plain names")
    return tuple(words)
