"""
The definitions that a server offers, those that the owner has approved, their names for a model
(``server__tool``), and the limits of a server's messages. Pure. A new or changed definition is off until the
owner has approved it as shown. Messages are refused before they are parsed, by size and by number of parts,
because four megabytes of brackets become a hundred as objects.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeGuard

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

Kind = Literal["tool", "resources", "resource", "prompt"]
"""What a call asks the server for: a tool, the list of its resources, one of them, or a prompt."""
MAX_TOOLS = 300
"""The most tools of one server that are used."""
_DESCRIPTION_CHARS = 2000
_SCHEMA_CHARS = 20_000
_MAX_NAMED = 20
_MAX_COMPARED_LINES = 1000
_OPEN: Mapping[str, Any] = {"type": "object", "properties": {}}
_NOT_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$schema", "$id")
"""What some providers refuse at the top of a schema; the server checks it anyway."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool as a server describes it; ``digest`` covers all of it, also cut parts."""

    name: str
    description: str
    schema: Mapping[str, Any]
    digest: str
    kind: Kind = "tool"

    def as_json(self) -> dict[str, Any]:
        """The definition for storing."""
        return {
            "name": self.name,
            "description": self.description,
            "schema": dict(self.schema),
            "digest": self.digest,
            "kind": self.kind,
        }

    def as_text(self) -> str:
        """The definition as people compare it."""
        schema = json.dumps(self.schema, indent=2, sort_keys=True, ensure_ascii=False)
        return f"{self.description}\n{schema}\n"


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """A definition that the owner has not approved; ``diff`` is against the one that was."""

    name: str
    kind: Literal["new", "changed"]
    diff: str


@dataclass(frozen=True, slots=True)
class Pins:
    """
    The approved definitions of one server.

    Args:
        server: Identifies the configured server; another begins again.
        seen: The last listed ones; None before the first list.
        shown: The digests shown to the owner for approval.
        left_out: The unusable ones of the last list, and why.
    """

    server: str = ""
    approved: Mapping[str, Definition] = field(default_factory=dict)
    seen: Mapping[str, Definition] | None = None
    shown: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def update(self, definitions: Iterable[Definition], left_out: Iterable[str] = ()) -> Pins:
        """The pins after a new list of the server."""
        seen: dict[str, Definition] = {}
        said = list(definitions)
        for definition in said:
            seen.setdefault(definition.name, definition)
        second = [f"{each.name}: a second tool of this name" for each in said if seen[each.name] is not each]
        odd = [*left_out, *second]
        more = [f"and {len(odd) - _MAX_NAMED} more"] if len(odd) > _MAX_NAMED else []
        return replace(self, seen=seen, left_out=(*odd[:_MAX_NAMED], *more))

    def usable(self, allowed: Iterable[str] = ()) -> list[Definition]:
        """The usable definitions, sorted by name; only those that are ``allowed``, if any are named."""
        wanted = set(allowed)
        return [
            definition
            for name, definition in sorted(self.approved.items())
            if (not wanted or name in wanted) and self.is_approved(name)
        ][:MAX_TOOLS]

    def is_approved(self, name: str) -> bool:
        """Return True if a tool is unchanged since its approval."""
        approved, seen = self.approved.get(name), (self.seen or {}).get(name)
        return approved is not None and seen is not None and approved.digest == seen.digest

    def changes(self, allowed: Iterable[str] = ()) -> list[DefinitionChange]:
        """The changes that the owner has not approved."""
        wanted = set(allowed)
        found = []
        for name, seen in sorted((self.seen or {}).items()):
            before = self.approved.get(name)
            if (wanted and name not in wanted) or (before is not None and before.digest == seen.digest):
                continue
            old, new = (each.as_text().splitlines() if each else [] for each in (before, seen))
            lines = difflib.unified_diff(old, new, "approved", "now", lineterm="")
            if max(len(old), len(new)) > _MAX_COMPARED_LINES:  # a server's choice; it would take long
                lines = iter(
                    ["--- approved", "+++ now", *(f"-{each}" for each in old), *(f"+{each}" for each in new)]
                )
            found.append(DefinitionChange(name, "changed" if before else "new", "\n".join(lines)))
        return found

    def mark_shown(self, changes: Iterable[DefinitionChange]) -> Pins:
        """Return pins with these definitions marked as shown to the owner."""
        seen = self.seen or {}
        return replace(self, shown=frozenset(seen[each.name].digest for each in changes if each.name in seen))

    def with_approval(self, names: Iterable[str] = ()) -> Pins:
        """Return pins with these approved, or all; one that was not shown as it is now stays off."""
        seen = self.seen or {}
        chosen = [name for name in (names or seen) if name in seen and seen[name].digest in self.shown]
        kept = {name: each for name, each in self.approved.items() if name in seen}
        return replace(self, approved={**kept, **{name: seen[name] for name in chosen}})


def is_usable_name(name: object) -> TypeGuard[str]:
    """Return True if a tool of that name can be called."""
    return isinstance(name, str) and bool(name.strip()) and len(name) <= 200 and name.isprintable()


def definition_from(name: object, description: object, schema: object) -> Definition | None:
    """A definition of what a server says; None if nobody could call it."""
    if not is_usable_name(name):
        return None
    said = description if isinstance(description, str) else ""
    whole = json.dumps([name, said, schema], sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(whole.encode()).hexdigest()
    text = _visible(said)
    if len(text) > _DESCRIPTION_CHARS:
        text = text[:_DESCRIPTION_CHARS] + " […]"
    return Definition(name, text, _fit(schema), digest)


def parse_definition(value: Mapping[str, Any]) -> Definition:
    """Read what `Definition.as_json` gave."""
    kind = value.get("kind", "tool")
    return Definition(value["name"], value["description"], value["schema"], value["digest"], kind)


def _visible(text: str) -> str:
    kept = (
        char if char == "\n" or unicodedata.category(char)[0] != "C" else (" " if char in "\t\r" else "")
        for char in text
    )
    return "".join(kept).strip()


def _fit(schema: object) -> Mapping[str, Any]:
    """
    A schema that a provider takes: one that is none would have every request refused.

    It is an object at its top and refers to nothing outside of itself.
    """
    if not isinstance(schema, dict):
        return dict(_OPEN)
    fit = {key: value for key, value in _resolved(schema).items() if key not in _NOT_AT_THE_TOP}
    fit["type"] = "object"
    if not isinstance(fit.get("properties"), dict):
        fit["properties"] = {}
    if len(json.dumps(fit)) > _SCHEMA_CHARS or not all(map(_is_local, _references(fit))):
        return dict(_OPEN)
    try:
        Draft202012Validator.check_schema(fit)
    except (SchemaError, RecursionError):
        return dict(_OPEN)
    return fit


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with what its top refers to, such as ``#/$defs/Query``, in the place of the reference."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = schema
    for part in reference[2:].split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**found, **rest} if isinstance(found, dict) and "$ref" not in found else schema


def _references(value: object) -> Iterable[object]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "$ref" in one:
                yield one["$ref"]
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _is_local(reference: object) -> bool:
    return isinstance(reference, str) and reference.startswith("#")


MAX_BYTES = 4_000_000
MAX_PARTS = 20_000
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_FLOOD_MESSAGES, _MESSAGES_PER_S = 500, 50.0
_FLOOD_BYTES, _BYTES_PER_S = 24_000_000, 1_000_000.0


class ServerMisbehaviour(Exception):
    """The server misbehaves; the text says how, for the owner."""


def check_message(message: bytes) -> None:
    """Check that a message is of bounded size and number of parts. Raises Misbehaviour."""
    if len(message) > MAX_BYTES:
        raise ServerMisbehaviour(f"it sent a message of more than {MAX_BYTES // 1_000_000} MB")
    if _parts(message) > MAX_PARTS and _parts(_STRING.sub(b"", message)) > MAX_PARTS:
        raise ServerMisbehaviour(f"it sent a message of more than {MAX_PARTS:,} parts")


def _parts(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class LineReader:
    """Splits a program's output into lines, in linear time and bounded memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the complete lines that are not blank. Raises Misbehaviour."""
        *ended, rest = piece.split(b"\n")
        lines = []
        if ended:
            lines = [b"".join([*self._pieces, ended[0]]), *ended[1:]]
            self._pieces, self._size = [], 0
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
        if self._size > MAX_BYTES:
            raise ServerMisbehaviour(f"it sent a message of more than {MAX_BYTES // 1_000_000} MB")
        return [line for line in lines if line.strip()]


class Allowance:
    """Rate limit for the messages and bytes of a server: a burst, and a rate."""

    def __init__(self) -> None:
        self._messages, self._bytes = float(_FLOOD_MESSAGES), float(_FLOOD_BYTES)
        self._at: float | None = None

    def spend(self, size: int, *, now: float) -> None:
        """Count a message. Raises `ServerMisbehaviour`: there were too many."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._messages = min(_FLOOD_MESSAGES, self._messages + passed * _MESSAGES_PER_S) - 1
        self._bytes = min(_FLOOD_BYTES, self._bytes + passed * _BYTES_PER_S) - size
        if self._messages < 0 or self._bytes < 0:
            raise ServerMisbehaviour("it sent a flood of messages")


MAX_TOOL_NAME = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_CHARS = 6


def model_name(server: str, tool: str) -> str:
    """
    The name of a tool for models.

    A name that had to be changed or cut ends with a hash of what the server calls it, so that two tools of
    one server share a name only if the server has looked for that; see `tools_by_name`.
    """
    fit = _UNFIT.sub("_", tool)
    if fit == tool and tool and "__" not in tool and len(server) + 2 + len(tool) <= MAX_TOOL_NAME:
        return f"{server}__{tool}"
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    room = MAX_TOOL_NAME - len(server) - len("__") - len("-") - _HASH_CHARS
    return f"{server}__{fit[:room]}-{digest}"


def tools_by_name(server: str, tools: Iterable[str]) -> Mapping[str, str]:
    """The tool for each name: of two with the same one, the first, so that none takes another's place."""
    found: dict[str, str] = {}
    for tool in sorted(tools):
        found.setdefault(model_name(server, tool), tool)
    return found
