"""
Forms that a program asks a person to fill in: shown as text, and answered in words. Pure. A form is flat:
each field is a text, a number, a yes or no, or one or some of given choices. Whoever made the form chose its
words, so its size is bounded. One with a field that is named like a secret is refused: what a person writes
in a conversation is kept there. Limits of numbers and lengths are checked; what else a form wants of a value,
whoever has asked checks.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Value = str | int | float | bool | list[str]
_MAX_FIELDS = 10
_MAX_CHOICES = 50
_MESSAGE_CHARS = 2_000
_TEXT_CHARS = 300
_ANSWER_CHARS = 2_000
_SECRET = re.compile(
    r"\b(?:pass ?(?:word|wd|phrase|code)|secret|token|credentials?|(?:api|access|private|ssh) ?key"
    r"|pin|otp|cv[vc]2?|mfa|2fa)\b"
)
"""In the name of a field, in words of small letters."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NO_SECRETS = "it asks for a secret, which a server must ask for at an address of its own (url mode)"
_YES = frozenset({"yes", "y", "true", "on", "ok", "✅", "👍"})
_NO = frozenset({"no", "n", "false", "off", "❌", "👎"})


class FormRefused(Exception):
    """Nobody is asked this form; the text says why."""


class NotAnAnswer(Exception):
    """The words do not fit the form; the text tells their author what is missing."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form; ``choices`` are pairs of value and label."""

    name: str
    kind: Kind
    title: str = ""
    description: str = ""
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    least: float | None = None
    most: float | None = None
    """Of a number; of a text its length."""

    def describe_values(self) -> str:
        """The values that fit, for people."""
        match self.kind:
            case "choice" | "choices":
                names = ", ".join(shown for _, shown in self.choices)
                return f"{'one' if self.kind == 'choice' else 'some'} of: {names}"
            case "boolean":
                return "yes or no"
        counted = " characters" if self.kind == "text" else ""
        what = {"text": "text", "integer": "a whole number"}.get(self.kind, "a number")
        if self.least is not None and self.most is not None:
            return f"{what} {'of' if counted else 'from'} {self.least:g} to {self.most:g}{counted}"
        if self.least is not None or self.most is not None:
            limit = f"least {self.least:g}" if self.most is None else f"most {self.most:g}"
            return f"{what} of at {limit}{counted}"
        return what

    def describe(self) -> str:
        """The field, for people."""
        what = self.describe_values()
        parts = [what if self.required else f"{what}; may be left out", self.title, self.description]
        return ". ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Form:
    """A form of ``asker``; a person opens ``address``, if given, instead of answering here."""

    asker: str
    message: str
    fields: tuple[Field, ...] = ()
    address: str = ""

    @property
    def is_closed(self) -> bool:
        """Return True if few words are valid answers, so that other messages are rarely mistaken for one."""
        return not self.fields or (len(self.fields) == 1 and self.fields[0].kind != "text")

    def is_named_in(self, text: str) -> bool:
        """Return True if a text names each required field with a value: hardly anything else is meant."""
        parts = [each.partition(":") for each in text.replace(";", "\n").split("\n")]
        named = [name for name, _colon, value in parts if value.strip()]
        wanted = [field for field in self.fields if field.required]
        return bool(wanted) and all(any(_is_called(one, name) for name in named) for one in wanted)

    def as_json(self) -> dict[str, Any]:
        """The form for storing."""
        return asdict(self)


def form_of(kept: Mapping[str, Any]) -> Form:
    """Read what `Form.as_json` gave."""
    fields = tuple(
        Field(
            each["name"],
            each["kind"],
            each["title"],
            each["description"],
            each["required"],
            tuple((value, shown) for value, shown in each["choices"]),
            each.get("least"),
            each.get("most"),
        )
        for each in kept["fields"]
    )
    return Form(kept["asker"], kept["message"], fields, kept["address"])


def form_to_fill_in(asker: str, message: str, schema: Mapping[str, Any]) -> Form:
    """Build the form of a flat JSON schema. Raises FormRefused for secrets or impossible fields."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise FormRefused("its form cannot be read")
    if len(properties) > _MAX_FIELDS:
        raise FormRefused(f"its form has more than {_MAX_FIELDS} fields")
    required = schema.get("required", ())
    fields = tuple(_field(str(name), each, required) for name, each in properties.items())
    return Form(asker, _bounded(message, _MESSAGE_CHARS), fields)


def link_to_open(asker: str, message: str, address: str) -> Form:
    """Build the request to open an address. Raises FormRefused if it may not be shown."""
    try:
        parts = urlsplit(address)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
    except ValueError:
        fit = False
    if not fit or len(address) > 2_000 or not address.isascii() or not address.isprintable():
        raise FormRefused("the address that it wants people to open is not one that I show to them")
    return Form(asker, _bounded(message, _MESSAGE_CHARS), (), address)


def read(form: Form, text: str) -> dict[str, Value]:
    """Parse an answer: ``name: value`` lines, or the value of a single field. Raises NotAnAnswer."""
    text = text.strip()
    if len(text) > _ANSWER_CHARS:
        raise NotAnAnswer(f"That is more than {_ANSWER_CHARS} characters.")
    if not form.fields:
        if text.rstrip(".!").casefold() not in _YES:
            raise NotAnAnswer("Answer `yes` or `no`.")
        return {}
    found: dict[str, Value] = {}
    for field, said in zip(form.fields, _said(form, text), strict=True):
        if said is None or (said == "-" and not field.required):
            if field.required:
                raise NotAnAnswer(f"`{_field_name(field)}` is missing.")
            continue
        found[field.name] = _value(field, said)
    return found


def _said(form: Form, text: str) -> list[str | None]:
    if len(form.fields) == 1:
        name, colon, rest = text.partition(":")
        return [rest.strip() if colon and _is_called(form.fields[0], name) else text or None]
    parts = [part.strip() for part in (text.split("\n") if "\n" in text else text.split(";")) if part.strip()]
    named: dict[str, str] = {}
    for part in parts:
        name, colon, rest = part.partition(":")
        for field in form.fields:
            if colon and _is_called(field, name):
                named[field.name] = rest.strip()
    if len(named) == len(parts):
        return [named.get(field.name) for field in form.fields]
    names = ", ".join(f"`{_field_name(field)}`" for field in form.fields)
    raise NotAnAnswer(f"Write a line `name: value` for each of {names}.")


def _is_called(field: Field, name: str) -> bool:
    return name.strip().casefold() in {field.name.casefold(), field.title.casefold() or field.name.casefold()}


def _value(field: Field, said: str) -> Value:
    match field.kind:
        case "text":
            if _fits(field, len(said)):
                return said
        case "boolean":
            word = said.rstrip(".!").casefold()
            if word in _YES | _NO:
                return word in _YES
        case "number" | "integer":
            with suppress(ValueError):
                number = int(said) if field.kind == "integer" else float(said)
                if math.isfinite(number) and _fits(field, number):
                    return number
        case "choice":
            return _choice(field, said)
        case "choices":
            return list(dict.fromkeys(_choice(field, each) for each in said.split(",") if each.strip()))
    raise NotAnAnswer(f"`{_field_name(field)}` must be {field.describe_values()}.")


def _fits(field: Field, size: float) -> bool:
    return (field.least is None or size >= field.least) and (field.most is None or size <= field.most)


def _choice(field: Field, said: str) -> str:
    wanted = said.strip().casefold()
    for value, shown in field.choices:
        if wanted in (value.casefold(), shown.casefold()):
            return value
    raise NotAnAnswer(f"`{_field_name(field)}` must be {field.describe_values()}.")


def _field_name(field: Field) -> str:
    name = "".join(char for char in field.name if char.isprintable() and char != "`")
    return name[:80] or "the value"


def _field(name: str, schema: object, required: object) -> Field:
    if not isinstance(schema, dict) or len(name) > _TEXT_CHARS:
        raise FormRefused("its form cannot be read")
    title = _bounded(schema.get("title"))
    words = _CAMEL.sub(" ", f"{name} / {title} / {schema.get('format')}")
    if _SECRET.search(" ".join(re.findall(r"[^\W_]+|/", words)).casefold()):
        raise FormRefused(_NO_SECRETS)
    kind = schema.get("type")
    items = schema.get("items") if kind == "array" else schema
    choices = _choices(items if isinstance(items, dict) else {})
    found: Kind
    match kind:
        case "array" | "string" if choices:
            found = "choices" if kind == "array" else "choice"
        case "string":
            found = "text"
        case "number" | "integer" | "boolean":
            found = kind
        case _:
            raise FormRefused("its form asks for something that cannot be written in a message")
    description = _bounded(schema.get("description"))
    is_required = isinstance(required, Sequence) and name in required
    names = ("minLength", "maxLength") if found == "text" else ("minimum", "maximum")
    least, most = (_limit(schema.get(each)) for each in names)
    return Field(name, found, title if title != name else "", description, is_required, choices, least, most)


def _limit(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.maxsize else None


def _choices(schema: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[Any, Any]] = []
    titled = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(titled, list):
        found = [
            (each.get("const"), each.get("title") or each.get("const"))
            for each in titled
            if isinstance(each, dict)
        ]
    elif isinstance(values := schema.get("enum"), list):
        found = [(value, value) for value in values]
    if len(found) > _MAX_CHOICES:
        raise FormRefused(f"its form has more than {_MAX_CHOICES} choices")
    if any(not isinstance(part, str) or len(part) > _TEXT_CHARS for pair in found for part in pair):
        raise FormRefused("its form cannot be read")
    return tuple(found)


def _bounded(text: object, most: int = _TEXT_CHARS) -> str:
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > most:
        raise FormRefused("its question is too long")
    return text
