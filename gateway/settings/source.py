"""
Parses a YAML file into plain data that remembers where each value stood, and resolves ``${NAME}``,
``${file:/path}`` and ``${secret:NAME}``. Not ``yaml.safe_load``: errors must name lines, duplicate keys must
not vanish, and YAML 1.1 reads ``off`` as False and ``22:00`` as 1320. A secret is taken from the first of
`secret_places` that has it.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_CONTAINER = Path("/run/secrets")


def is_secret_file_name(name: str) -> bool:
    """Return True if ``name`` is a NAME of ``${secret:NAME}``: letters, digits and ``_ . -``, no path."""
    return _NAME.fullmatch(name) is not None


def secret_places(name: str, *, beside: Path, environ: Mapping[str, str]) -> list[Path]:
    """
    Return the possible files of a secret, in order; ``name`` must be valid.

    ``environ`` has CREDENTIALS_DIRECTORY (systemd.exec(5), "CREDENTIALS"). systemd joins the names of a
    loaded folder, so ``/etc/squidbot/secrets/NAME`` loaded as ``squidbot:/etc/squidbot`` is
    ``squidbot_secrets_NAME``.
    """
    places = []
    if handed := environ.get("CREDENTIALS_DIRECTORY"):
        folder = Path(handed)
        places += [folder / name, folder / f"squidbot_secrets_{name}"]
    return [*places, _CONTAINER / name, beside / "secrets" / name]


KeyPath = tuple[str | int, ...]

_MAX_BYTES = 1_000_000
_MAX_NODES = 20_000
_MAX_DEPTH = 50
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"
_TOO_MANY = f"it has more than {_MAX_NODES:,} values, which is too many"
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"(?:^|_)(?:password|passphrase|secret|token|api_key|recovery_key)$")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the configuration, with its key and its line."""

    path: KeyPath
    message: str
    line: int = 0
    column: int = 0


@dataclass(slots=True)
class Source:
    """
    The content of a configuration file.

    ``lines`` has the line of every key and list element. ``referenced`` are the paths whose value came out
    of the environment or a file, ``references`` from where: ``env NAME``, ``file /path`` or ``secret NAME``.
    ``secret_texts`` are all values that must never be shown, ``files`` what was read besides the
    configuration itself, ``text`` is all of it as it stands there.
    """

    path: Path
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    referenced: set[KeyPath] = field(default_factory=set)
    literal_secrets: bool = False
    secret_texts: set[str] = field(default_factory=set)
    files: list[Path] = field(default_factory=list)
    references: dict[KeyPath, list[str]] = field(default_factory=dict)
    text: str = ""

    def line_of(self, path: KeyPath) -> int:
        """The line of ``path``, or of the nearest thing around it that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def is_secret_name(name: str | int) -> bool:
    """Return True if a key of this name holds a secret."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def show_path(path: KeyPath) -> str:
    """A path the way people write it: ``llm.pools.main[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_source(path: Path, environ: Mapping[str, str]) -> Source:
    """Read a configuration; every problem is in ``problems``, nothing is raised."""
    source = Source(path)
    try:
        source.text = _read_text(path)
        node = compose(source.text)
    except FileNotFoundError:
        source.problems.append(
            Problem(
                (),
                "there is no such file; `squidbot init` creates one (`squidbot demo` needs none)",
            )
        )
    except (OSError, ValueError) as error:
        source.problems.append(Problem((), f"cannot be read: {_reason(error)}"))
    except yaml.YAMLError as error:
        source.problems.append(_yaml_problem(error))
    else:
        _Walk(source, environ).top(node)
    return source


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own form
    _composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, as long as there are not too many: 400,000 values took 14 s."""
        self._composed += 1
        if self._composed > 2 * _MAX_NODES:  # keys are nodes, too
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"(?:{_pattern})$"),
        [*_first, ""] if _tag == "null" else [*_first],
    )


def _number_or_text(tag: str, text: str) -> Any:
    # An explicit tag ("!!int x") comes here with any text.
    try:
        match tag.rpartition(":")[2]:
            case "null":
                return None
            case "bool":
                return text[:1] in ("t", "T")
            case "int" if len(text) < 20:
                return int(text)
            case "float" if len(text) < 40:
                return float(text)
    except ValueError:
        pass
    return text


def compose(text: str) -> yaml.Node | None:
    """Parse YAML with the position of each node, for editors. Raises yaml.YAMLError."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    return node


def plain(node: yaml.Node | None, *, depth: int = 0) -> Any:
    """The plain data of a tree, with references as they were written."""
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): plain(value, depth=depth + 1) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [plain(item, depth=depth + 1) for item in node.value]
    return None if node is None else _number_or_text(node.tag, str(node.value))


class _Walk:
    """One walk over the tree of nodes."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._nodes = 0
        self._open: list[int] = []

    def top(self, node: yaml.Node | None) -> None:
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self._complain((), node, 'must consist of "key: value" lines')
            return
        self._source.data = self._value(node, ())

    def _complain(self, path: KeyPath, node: yaml.Node, message: str) -> None:
        mark = node.start_mark
        self._source.problems.append(Problem(path, message, mark.line + 1, mark.column + 1))

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._source.lines.setdefault(path, node.start_mark.line + 1)
        self._nodes += 1
        # Aliases make a small file unfold into a huge or endless one.
        if self._nodes > _MAX_NODES or id(node) in self._open:
            if self._nodes <= _MAX_NODES + 1:
                endless = id(node) in self._open or "&" in self._source.text
                why = "expands without end; a YAML alias must not contain itself" if endless else _TOO_MANY
                self._complain(path, node, why)
                self._nodes = _MAX_NODES + 1
            return None
        if len(self._open) >= _MAX_DEPTH:
            self._complain(path, node, _TOO_DEEP)
            return None
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                items = enumerate(node.value)
                return [self._value(item, (*path, at)) for at, item in items if self._nodes <= _MAX_NODES]
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(path, key_node, "a key must be plain text")
                continue
            key = str(key_node.value)
            inner = (*path, key)
            if key in result:
                first = self._source.lines.get(inner, 0)
                self._complain(inner, key_node, f"appears twice; the first one is in line {first}")
                continue
            self._source.lines[inner] = key_node.start_mark.line + 1
            result[key] = self._value(value_node, inner)
        return result

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text = str(node.value)
        if node.tag != "tag:yaml.org,2002:str":
            if not node.tag.startswith("tag:yaml.org,2002:"):
                self._complain(path, node, f"the YAML tag {node.tag} is not supported")
                return text
            value = _number_or_text(node.tag, text)
            if path and is_secret_name(path[-1]) and value is not None:
                self._source.secret_texts.add(text)
            return value
        value = self._resolve(node, path, text)
        if path and is_secret_name(path[-1]) and value:
            self._source.secret_texts.add(value)
            self._source.literal_secrets |= path not in self._source.referenced
        return value

    def _resolve(self, node: yaml.Node, path: KeyPath, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            if match.group(1) is None:
                return "${"
            self._source.referenced.add(path)
            self._source.references.setdefault(path, []).append(_kind_of(match.group(1).strip()))
            value = self._look_up(node, path, match.group(1).strip())
            if value is None:
                # Left as it is, so that one missing value is not complained about twice.
                return match.group()
            if value:
                self._source.secret_texts.add(value)
            return value

        return _REFERENCE.sub(replace, text)

    def _look_up(self, node: yaml.Node, path: KeyPath, name: str) -> str | None:
        if name.startswith("file:"):
            return self._read_file(node, path, name.removeprefix("file:").strip())
        if name.startswith("secret:"):
            return self._read_secret(node, path, name.removeprefix("secret:").strip())
        if not _ENV_NAME.fullmatch(name):
            self._complain(
                path,
                node,
                '"${{name}}" is not a reference; write ${NAME}, ${file:/path}, ${secret:NAME} or $${',
            )
            return None
        if name not in self._environ:
            self._complain(path, node, f"the environment variable {name} is not set")
            return None
        return self._environ[name]

    def _read_secret(self, node: yaml.Node, path: KeyPath, name: str) -> str | None:
        if not is_secret_file_name(name):
            self._complain(
                path, node, f'"{name}" is not a valid name for a secret; use letters, digits and _ . -'
            )
            return None
        places = secret_places(name, beside=self._source.path.parent, environ=self._environ)
        for place in places:
            if _is_there(place):
                return self._read_file(node, path, str(place))
        tried = ", ".join(map(str, places))
        self._complain(path, node, f"there is no secret {name}; none of these files exists: {tried}")
        return None

    def _read_file(self, node: yaml.Node, path: KeyPath, name: str) -> str | None:
        if not name:
            self._complain(path, node, "${file:} names no file")
            return None
        target = self._source.path.parent / Path(name).expanduser()
        try:
            text = _read_text(target)
        except (OSError, ValueError, RuntimeError) as error:
            self._complain(path, node, f"the file {target} cannot be read: {_reason(error)}")
            return None
        self._source.files.append(target)
        return text.removesuffix("\n").removesuffix("\r")


def _kind_of(reference: str) -> str:
    kind, colon, name = reference.partition(":")
    return f"{kind} {name.strip()}" if colon else f"env {reference}"


def _read_text(path: Path) -> str:
    # A pipe or a device would block, or never end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a file")
    with path.open("rb") as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes; is this the right file?")
    return raw.decode("utf-8-sig")


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # whoever reads it tells why it cannot be read
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _yaml_problem(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = (
        getattr(error, "problem", None)
        or getattr(error, "reason", None)
        or str(error)
        or "it cannot be parsed"
    )
    hint = ""
    if mark is not None and mark.buffer is not None:
        line = mark.buffer.split("\n")[mark.line] if mark.line < mark.buffer.count("\n") + 1 else ""
        if "\t" in line[: mark.column + 1]:
            hint = "; indent with spaces, not with tabs"
        elif line[mark.column : mark.column + 1] in ("@", "`", "%"):
            hint = "; put the text in quotes"
    where = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    return Problem((), f"bad YAML: {said}{hint}", *where)
