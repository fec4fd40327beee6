"""
Changes single settings in a YAML file and leaves every other character as it is. Pure.

`changed` takes the text and what certain keys shall say. A key that says it already is not touched; one that
says something else gets a new value in its place; one that is missing is added below the last of its
neighbours, with a note. So comments, order and everything else that a person has written stay, and the same
answers give the same bytes. What cannot be edited like this (YAML aliases in the way, for example) is
written anew from its data, which is told (`Changed.anew`). Either way the outcome is read again and compared
with what it should say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from gateway.settings.source import KeyPath, compose, plain

_STEP = 2
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Changed:
    """A new text. ``edited`` are the keys with a new value; ``anew``: the comments are gone."""

    text: str
    edited: tuple[KeyPath, ...] = ()
    anew: bool = False


def changed(text: str, wanted: Mapping[KeyPath, Any], notes: Mapping[KeyPath, str]) -> Changed:
    """
    The text with these settings.

    Args:
        text: A configuration; may be empty.
        wanted: What the keys shall say: texts, numbers, truth values, and lists of texts.
        notes: A comment for each key that has to be added.

    Raises:
        yaml.YAMLError, ValueError: The text is no configuration.
    """
    before = plain(compose(text)) or {}
    if not isinstance(before, dict):
        raise ValueError('must consist of "key: value" lines')  # noqa: TRY004 - what is wrong is the text
    expected = deepcopy(before)
    edited = []
    for path, value in wanted.items():
        if value_at(before, path) != value:
            _put(expected, path, value)
            edited.append(path)
    if not edited:
        return Changed(text)
    try:
        new = text
        for path in edited:
            new = _with(new, path, wanted[path], notes)
        if plain(compose(new)) == expected:
            return Changed(new, tuple(edited))
    except (yaml.YAMLError, _NotInPlace):
        pass
    dumped = yaml.safe_dump(expected, allow_unicode=True, sort_keys=False, width=_WIDTH)
    if plain(compose(dumped)) != expected:
        raise ValueError("it cannot be changed without losing something")
    return Changed(dumped, tuple(edited), anew=True)


def value_at(data: Any, path: KeyPath) -> Any:
    """The value at a path; None if there is none."""
    for part in path:
        if isinstance(data, dict) and isinstance(part, str):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def rendered(value: Any) -> str:
    """A value on one line, quoted so that YAML reads it as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(rendered, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)}: {rendered(inner)}' for key, inner in value.items())}}}"
    text = str(value)
    if _is_plain(text):
        return text
    return "".join(
        char if _may_stand(char) else _escaped(char) for char in json.dumps(text, ensure_ascii=False)
    )


class _NotInPlace(Exception):
    """There is no place in the text for this change alone."""


def _put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    here: Any = data
    for part in path[:-1]:
        if isinstance(here, list):
            here = here[int(part)]
            continue
        if not isinstance(here.get(part), dict | list):
            here[part] = {}
        here = here[part]
    here[path[-1]] = value


def _with(text: str, path: KeyPath, value: Any, notes: Mapping[KeyPath, str]) -> str:
    node = compose(text)
    if node is None:
        head = f"{text.rstrip()}\n\n" if text.strip() else ""
        return head + "\n".join(_block(path, value, (), 0, notes)) + "\n"
    done: KeyPath = ()
    key: yaml.Node | None = None
    for part in path:
        found = _child(node, part)
        if found is None:
            break
        key, node = found
        done = (*done, part)
    rest = path[len(done) :]
    if not rest:
        return _replaced(text, key, node, value)
    if isinstance(node, yaml.MappingNode) and node.value:
        if node.flow_style:
            return _into_braces(text, node, rest, value)
        return _below(text, node, path, value, done=done, notes=notes)
    if key is None or isinstance(node, yaml.SequenceNode) or plain(node) not in (None, {}):
        raise _NotInPlace
    # A key that says nothing yet.
    bare = text[: key.end_mark.index] + ":" + text[_end(node, text) :] if _written(node, text) else text
    line_end = _line_end(bare, key.end_mark.index)
    lines = _block(rest, value, done, key.start_mark.column + _STEP, notes)
    return bare[:line_end] + "\n" + "\n".join(lines) + bare[line_end:]


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if str(key.value) == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None


def _replaced(text: str, key: yaml.Node | None, node: yaml.Node, value: Any) -> str:
    if not isinstance(node, yaml.ScalarNode) or not _written(node, text):
        if key is None:
            raise _NotInPlace
        end = max(_end(node, text), text.index(":", key.end_mark.index) + 1)
        return f"{text[: key.end_mark.index]}: {rendered(value)}{text[end:]}"
    return text[: node.start_mark.index] + rendered(value) + text[_end(node, text) :]


def _into_braces(text: str, node: yaml.Node, rest: KeyPath, value: Any) -> str:
    for part in reversed(rest[1:]):
        value = {str(part): value}
    at = node.end_mark.index - 1
    before = text[:at].rstrip()
    comma = " " if before.endswith(",") else ", "
    return f"{before}{comma}{_key(rest[0])}: {rendered(value)}{text[at:]}"


def _below(
    text: str,
    node: yaml.MappingNode,
    path: KeyPath,
    value: Any,
    *,
    done: KeyPath,
    notes: Mapping[KeyPath, str],
) -> str:
    column = node.value[0][0].start_mark.column
    last_key, last = node.value[-1]
    end = max(_end(last, text), last_key.end_mark.index)
    at = _line_end(text, end)
    lines = _block(path[len(done) :], value, done, column, notes)
    gap = "\n\n" if not done and len(path) > 1 else "\n"
    tail = text[at:] if text[at:].strip("\n") else "\n"
    return text[:at].rstrip("\n") + gap + "\n".join(lines) + tail


def _block(rest: KeyPath, value: Any, done: KeyPath, column: int, notes: Mapping[KeyPath, str]) -> list[str]:
    """The lines of a key below keys that are not there yet, each with its note."""
    lines: list[str] = []
    for number, part in enumerate(rest):
        done = (*done, part)
        space = " " * (column + number * _STEP)
        note = notes.get(done, "")
        is_last = number == len(rest) - 1
        line = f"{space}{_key(part)}:{f' {rendered(value)}' if is_last else ''}"
        if note and is_last and len(line) + len(note) + 4 <= _WIDTH and "\n" not in note:
            line = f"{line}  # {note}"
        elif note:
            lines += [f"{space}# {one}" for one in note.splitlines()]
        lines.append(line)
    return lines


def _end(node: yaml.Node, text: str) -> int:
    """Where what is written of a node ends; a block's own mark is behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return max(_end(node.value[-1][1], text), int(node.value[-1][0].end_mark.index))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1], text)
    start, end = int(node.start_mark.index), int(node.end_mark.index)
    return start + len(text[start:end].rstrip())


def _written(node: yaml.Node, text: str) -> bool:
    return bool(text[node.start_mark.index : node.end_mark.index].strip())


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _key(part: str | int) -> str:
    return rendered(str(part))


def _is_plain(text: str) -> bool:
    """Whether it can stand without quotes: simple words that mean nothing to YAML."""
    simple = text.replace("-", "").replace("_", "").replace(".", "")
    return (
        text.isascii()
        and simple.isalnum()
        and text[0].isalpha()
        and text.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    )


def _may_stand(char: str) -> bool:
    return char.isprintable() or char == " "


def _escaped(char: str) -> str:
    number = ord(char)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
