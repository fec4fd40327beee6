"""
Forms that a program asks a person to fill in: shown as text, and answered in words. Pure.

A form is flat: each field is a text, a number, a yes or no, or one or some of given choices. Whoever made the
form chose its words, so its size is bounded, and one that asks for a secret is refused: what a person writes
in a conversation is kept there.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Value = str | int | float | bool | list[str]
_MOST_FIELDS = 10
_MOST_CHOICES = 50
_MESSAGE_CHARS = 2_000
_TEXT_CHARS = 300
_ANSWER_CHARS = 2_000
_ADDRESS_CHARS = 2_000
_SECRET = re.compile(
    r"pass[\s_-]*(?:word|wd|phrase|code|key)|kenn?wort|passwort|secret|geheim|token|api[\s_-]*key|credential"
    r"|(?:private|signing|ssh)[\s_-]*key|\bpin\b|pin[\s_-]?(?:code|number|nummer)|\bcv[vc]2?\b"
    r"|one[\s_-]*time|\botp\b|\b2fa\b|\bmfa\b|\btan\b|mnemonic"
    r"|(?:seed|recovery|backup)[\s_-]*(?:phrase|word|code|key)|card[\s_-]*number"
    r"|(?:security|verification|authenticat(?:or|ion)|login|access|sms)[\s_-]*code"
    r"|social[\s_-]*security|\bssn\b"
    r"|(?:bestatigungs|sicherheits|zugangs|einmal)[\s_-]*(?:code|daten|schlussel)|losungswort|anmeldedaten"
    r"|code de (?:verification|securite)|codigo de (?:verificacion|seguridad|acceso)"
    r"|contrasena|contrasinal|mot[\s_-]*de[\s_-]*passe|palabra clave|\bsenha\b|parola d'ordine|wachtwoord"
    r"|losenord|adgangskode|kodeord|passord|salasana|\bhasł[aoe]|\bheslo|lozink|jelszo|\bsifre|парол"
    r"|密码|密碼|ハスワート|暗証|비밀번호"
)
"""In texts of small letters without accents and other marks."""
_DENSE_SECRET = re.compile(r"pass(?:word|wort|phrase|code)|kennwort|apikey|privatekey")
_LOOKALIKES = str.maketrans("аеорсухіѕԁ40135@$", "aeopcyxisdaoiesas")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NO_SECRETS = "it asks for a password or another secret"
_YES = frozenset({"yes", "y", "true", "on", "ok", "✅", "👍"})
_NO = frozenset({"no", "n", "false", "off", "❌", "👎"})


class FormRefused(Exception):
    """Nobody is asked this form; the text says why."""


class NotAnAnswer(Exception):
    """The words do not fit the form; the text tells their author what is missing."""


@dataclass(frozen=True, slots=True)
class Field:
    """
    One field of a form.

    Args:
        choices: Pairs of the value and what people call it.
        least, most: Of a number its bounds, of a text its length, of choices how many.
    """

    name: str
    kind: Kind
    title: str = ""
    description: str = ""
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    least: float | None = None
    most: float | None = None
    format: str = ""

    def described(self) -> str:
        """The values that fit, for people."""
        match self.kind:
            case "choice" | "choices":
                names = ", ".join(shown for _, shown in self.choices)
                what = f"{'one' if self.kind == 'choice' else 'some'} of: {names}"
            case "boolean":
                what = "yes or no"
            case "text":
                what = f"text ({self.format})" if self.format else "text"
            case _:
                what = "a whole number" if self.kind == "integer" else "a number"
        parts = [what if self.required else f"{what}; may be left out", self.title, self.description]
        return ". ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Form:
    """
    The form that ``asker`` wants filled in.

    Args:
        address: Where the person is to go in place of an answer here; nobody but a person opens it.
    """

    asker: str
    message: str
    fields: tuple[Field, ...] = ()
    address: str = ""

    @property
    def is_closed(self) -> bool:
        """Whether only a few words can be an answer, so that other messages are rarely taken for one."""
        return not self.fields or (len(self.fields) == 1 and self.fields[0].kind != "text")

    def as_json(self) -> dict[str, Any]:
        """The form for storing."""
        return asdict(self)


def form_of(kept: Mapping[str, Any]) -> Form:
    """Read what `Form.as_json` gave."""
    fields = tuple(
        Field(**{**each, "choices": tuple((value, shown) for value, shown in each["choices"])})
        for each in kept["fields"]
    )
    return Form(kept["asker"], kept["message"], fields, kept["address"])


def form_to_fill_in(asker: str, message: str, schema: Mapping[str, Any]) -> Form:
    """
    The form that a flat JSON schema describes.

    Raises:
        FormRefused: It asks for a secret, for too much, or for something that nobody can write in a message.
    """
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise FormRefused("its form cannot be read")
    if len(properties) > _MOST_FIELDS:
        raise FormRefused(f"its form has more than {_MOST_FIELDS} fields")
    required = schema.get("required", ())
    fields = tuple(_field(str(name), each, required) for name, each in properties.items())
    message = _bounded(message, _MESSAGE_CHARS)
    # Where nothing can be written, as in a choice, words about a secret do not ask for it.
    written = [each for each in fields if each.kind in ("text", "number", "integer")]
    if written and _asks_for_a_secret(message, *(each.description for each in written)):
        raise FormRefused(_NO_SECRETS)
    return Form(asker, message, fields)


def link_to_open(asker: str, message: str, address: str) -> Form:
    """
    The wish that a person opens an address.

    Raises:
        FormRefused: It is no address that may be shown to a person.
    """
    try:
        parts = urlsplit(address)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
    except ValueError:
        fit = False
    if not fit or len(address) > _ADDRESS_CHARS or not address.isascii() or not address.isprintable():
        raise FormRefused("the address that it wants people to open is not one that I show to them")
    return Form(asker, _bounded(message, _MESSAGE_CHARS), (), address)


def read(form: Form, text: str) -> dict[str, Value]:
    """
    What a person's words fill in. With one field they are its value; with more each line, or each part
    between semicolons, is ``name: value``, or all are in the order of the form.

    Raises:
        NotAnAnswer: They do not fit.
    """
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
                raise NotAnAnswer(f"`{_told(field)}` is missing.")
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
    if not named and len(parts) == len(form.fields):
        return list(parts)
    names = ", ".join(f"`{_told(field)}`" for field in form.fields)
    raise NotAnAnswer(f"Write a line `name: value` for each of {names}.")


def _is_called(field: Field, name: str) -> bool:
    return name.strip().casefold() in {field.name.casefold(), field.title.casefold() or field.name.casefold()}


def _value(field: Field, said: str) -> Value:
    match field.kind:
        case "text":
            return _text(field, said)
        case "boolean":
            word = said.rstrip(".!").casefold()
            if word not in _YES | _NO:
                raise NotAnAnswer(f"`{_told(field)}` must be yes or no.")
            return word in _YES
        case "number" | "integer":
            return _number(field, said)
        case "choice":
            return _choice(field, said)
    chosen = [_choice(field, each) for each in said.split(",") if each.strip()]
    if not _within(field, len(chosen)):
        raise NotAnAnswer(f"`{_told(field)}` wants another number of choices.")
    return list(dict.fromkeys(chosen))


def _text(field: Field, said: str) -> str:
    if not _within(field, len(said)):
        raise NotAnAnswer(f"The text for `{_told(field)}` is too short or too long.")
    try:
        if field.format == "date":
            date.fromisoformat(said)
        elif field.format == "date-time":
            datetime.fromisoformat(said)
    except ValueError:
        raise NotAnAnswer(f"`{_told(field)}` must be a time like 2026-03-01T10:00:00Z, or a date.") from None
    if field.format == "email" and not re.fullmatch(r"[^@\s]+@[^@\s]+", said):
        raise NotAnAnswer(f"`{_told(field)}` must be a mail address.")
    if field.format == "uri" and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S", said):
        raise NotAnAnswer(f"`{_told(field)}` must be an address.")
    return said


def _number(field: Field, said: str) -> int | float:
    try:
        number = int(said) if field.kind == "integer" else float(said)
    except ValueError:
        raise NotAnAnswer(f"`{_told(field)}` must be {field.described().partition(';')[0]}.") from None
    if not math.isfinite(number) or not _within(field, number):
        raise NotAnAnswer(f"The number for `{_told(field)}` is too small or too large.")
    return number


def _choice(field: Field, said: str) -> str:
    wanted = said.strip().casefold()
    for value, shown in field.choices:
        if wanted in (value.casefold(), shown.casefold()):
            return value
    raise NotAnAnswer(f"`{_told(field)}` must be {field.described().partition(';')[0]}.")


def _within(field: Field, size: float) -> bool:
    return (field.least is None or size >= field.least) and (field.most is None or size <= field.most)


def _told(field: Field) -> str:
    """The name of a field in a sentence of ours."""
    name = "".join(char for char in field.name if char.isprintable() and char != "`")
    return name[:80] or "the value"


def _field(name: str, schema: object, required: object) -> Field:
    if not isinstance(schema, dict) or len(name) > _TEXT_CHARS:
        raise FormRefused("its form cannot be read")
    title, format_ = _bounded(schema.get("title")), _bounded(schema.get("format"))
    if _asks_for_a_secret(name, title, format_):
        raise FormRefused(_NO_SECRETS)
    known: dict[str, Any] = {
        "title": title if title != name else "",
        "description": _bounded(schema.get("description")),
        "required": isinstance(required, Sequence) and name in required,
    }
    kind = schema.get("type")
    items = schema.get("items") if kind == "array" else schema
    choices = _choices(items if isinstance(items, dict) else {})
    if choices and kind in ("array", "string"):
        return Field(
            name,
            "choices" if kind == "array" else "choice",
            choices=choices,
            least=_bound(schema.get("minItems")),
            most=_bound(schema.get("maxItems")),
            **known,
        )
    if kind == "string":
        least, most = _bound(schema.get("minLength")), _bound(schema.get("maxLength"))
        return Field(name, "text", least=least, most=most, format=format_, **known)
    if kind in ("number", "integer"):
        least, most = _bound(schema.get("minimum")), _bound(schema.get("maximum"))
        return Field(name, kind, least=least, most=most, **known)
    if kind == "boolean":
        return Field(name, "boolean", **known)
    raise FormRefused("its form asks for something that cannot be written in a message")


def _asks_for_a_secret(*texts: str) -> bool:
    for text in texts:
        plain = unicodedata.normalize("NFKD", _CAMEL.sub(" ", text).replace("_", " ").casefold())
        plain = " ".join(
            "".join(char for char in word if unicodedata.category(char)[0] not in "CM")
            for word in plain.split()
        )
        plain = unicodedata.normalize("NFC", plain)
        dense = "".join(char for char in plain.translate(_LOOKALIKES) if char.isalnum())
        if _SECRET.search(plain) or _DENSE_SECRET.search(dense):
            return True
    return False


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
        names = schema.get("enumNames")
        found = list(
            zip(
                values,
                names if isinstance(names, list) and len(names) == len(values) else values,
                strict=True,
            )
        )
    if len(found) > _MOST_CHOICES:
        raise FormRefused(f"its form has more than {_MOST_CHOICES} choices")
    if any(not isinstance(part, str) or len(part) > _TEXT_CHARS for pair in found for part in pair):
        raise FormRefused("its form cannot be read")
    return tuple(found)


def _bounded(text: object, most: int = _TEXT_CHARS) -> str:
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > most:
        raise FormRefused("its question is too long")
    return text


def _bound(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
