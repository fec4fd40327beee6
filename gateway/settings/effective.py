"""
The configuration in effect, for `squidbot config show`: with masked secrets, and the origin of each value.
Masked is what a model calls a secret, what stands under a telling name, and whatever came out of a file or
was put together with a reference. A plain ``${NAME}`` of the environment is shown where neither the setting
nor the variable sounds like a secret: an address is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from gateway.observability.redaction import MASK, Redactor, names_a_secret
from gateway.routing.access import Alias
from gateway.settings import Settings
from gateway.settings.source import KeyPath, Source, is_secret_name, show_path


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The origin of a value: ``line`` (the file itself), ``env``, ``file`` or ``secret``."""

    kind: str
    name: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line}" if self.kind == "line" else f"{self.kind} {self.name}, line {self.line}"


def effective(settings: Settings) -> dict[str, Any]:
    """All settings as JSON can hold them, without secrets."""
    source = settings.source or Source(Path())
    leaves = list(_leaves(source.data))
    open_texts = {text for path, text in leaves if _is_open(path, text, source)}
    closed = {str(text) for path, text in leaves if any(is_secret_name(part) for part in path)}
    redactor = Redactor(settings.secrets() - (open_texts - closed))
    result: dict[str, Any] = _masked(settings, (), source, redactor)
    return result


def origins(settings: Settings) -> dict[str, SettingOrigin]:
    """The origin of each value of the file, by its path as people write it."""
    source = settings.source
    if source is None:
        return {}
    found = {}
    for path, _ in _leaves(source.data):
        line = source.line_of(path)
        kinds = [kind.partition(" ") for kind in source.references.get(path, ())]
        if not kinds:
            found[show_path(path)] = SettingOrigin("line", "", line)
            continue
        kind = " and ".join(dict.fromkeys(kind for kind, _, _ in kinds))
        found[show_path(path)] = SettingOrigin(kind, ", ".join(name for _, _, name in kinds), line)
    return found


def shown_text(settings: Settings) -> str:
    """All settings as YAML, with the origin of every value that is not a default."""
    known = origins(settings)
    lines: list[str] = []
    if settings.path is not None:
        lines.append(f"# {settings.path}; values without a remark are defaults")
    for name, value in effective(settings).items():
        lines += _lines(name, value, (name,), known, indent=0)
    return "\n".join(lines)


def _lines(
    name: str, value: Any, path: KeyPath, known: Mapping[str, SettingOrigin], *, indent: int
) -> list[str]:
    start = f"{' ' * indent}{_scalar(name)}:"
    if isinstance(value, dict) and value:
        found = [start]
        for key, inner in value.items():
            found += _lines(key, inner, (*path, key), known, indent=indent + 2)
        return found
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        found = [start]
        for number, item in enumerate(value):
            origin = known.get(show_path((*path, number)))
            found.append(f"{' ' * indent}  -{f'  # {origin}' if origin else ''}")
            for key, inner in item.items() if isinstance(item, dict) else ():
                found += _lines(key, inner, (*path, number, key), known, indent=indent + 4)
        return found
    places = [path, *((*path, number) for number in range(len(value) if isinstance(value, list) else 0))]
    remarks = [known[each] for each in map(show_path, places) if each in known]
    told = "; ".join(dict.fromkeys(map(str, remarks)))
    return [f"{start} {_scalar(value)}{f'  # {told}' if told else ''}"]


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _is_open(path: KeyPath, value: Any, source: Source) -> bool:
    """Return True if a value from the environment may be shown."""
    found = source.references.get(path, ())
    if len(found) != 1 or not isinstance(value, str) or any(is_secret_name(part) for part in path):
        return False
    kind, _, name = found[0].partition(" ")
    if kind != "env" or names_a_secret(name):
        return False
    line = "".join(source.text.splitlines()[source.line_of(path) - 1 :][:1])
    alone = rf"(?:^|[\s:,\[{{-])[\"']?\$\{{\s*{re.escape(name)}\s*\}}[\"']?\s*(?:$|[#,\]}}])"
    return re.search(alone, line) is not None


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*path, number))
    else:
        yield path, value


def _masked(value: Any, path: KeyPath, source: Source, redactor: Redactor) -> Any:  # noqa: PLR0911 - one per kind
    name = str(path[-1]) if path else ""
    match value:
        case SecretStr():
            return MASK if value.get_secret_value() else ""
        case BaseModel():
            return {
                key: _masked(getattr(value, key), (*path, key), source, redactor)
                for key in type(value).model_fields
            }
        case dict():
            return {str(key): _masked(inner, (*path, key), source, redactor) for key, inner in value.items()}
        case list() | tuple():
            return [_masked(inner, (*path, number), source, redactor) for number, inner in enumerate(value)]
        case None | bool() | int() | float():
            return value
        case Alias():
            return _masked(asdict(value), path, source, redactor)
    text = str(value)
    return MASK if text and names_a_secret(name) else redactor.text(text)
