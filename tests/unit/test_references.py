"""What a docstring or a comment names in backticks exists: a renamed function leaves no pointer to nowhere."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "channels", "agent_core", "squidbot_api")
FOREIGN = frozenset({"HEARTBEAT_OK", "get_prompt", "read_file", "read_resource", "tee"})
"""Names of protocols, tools and programs."""
_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


def names_and_texts(paths: list[Path]) -> tuple[set[str], dict[Path, str]]:
    """Return every identifier of the sources, with those of modules, and the docstrings and comments of each file."""
    names, texts = set[str](), dict[Path, str]()
    for path in paths:
        names |= {path.stem, *path.parts}
        words, before = list[str](), tokenize.NEWLINE
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NAME:
                names.add(token.string)
            is_docstring = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT)
            if is_docstring or token.type == tokenize.COMMENT:
                words.append(token.string)
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
        texts[path] = "\n".join(words)
    return names, texts


def pointers_to_nowhere(names: set[str], texts: dict[Path, str]) -> Iterator[str]:
    """Yield each reference of which a part is no identifier."""
    for path, text in texts.items():
        for match in _REFERENCE.finditer(text):
            if not {*match[1].removesuffix(".py").split(".")} <= names | FOREIGN:
                yield f"{path}: {match[1]}"


def test_what_is_referred_to_exists():
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert list(pointers_to_nowhere(*names_and_texts(paths))) == []


def test_a_pointer_to_nowhere_is_found(tmp_path):
    (tmp_path / "one.py").write_text('"""See `two.there` and `one.py`."""\n\nthere = 1\n')
    found = list(pointers_to_nowhere(*names_and_texts([tmp_path / "one.py"])))
    assert [each.rpartition(" ")[2] for each in found] == ["two.there"]
