"""The messages that the manual quotes are those that squidbot writes, word for word."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("troubleshooting.md", "email.md", "matrix.md")
_QUOTED = re.compile(r'^\| (?:a dead letter )?"([^"|]+)"', re.MULTILINE)
_GAP = re.compile(r"\s*…\s*")
_OF_OTHERS = {"Start request repeated too quickly"}


def product_words() -> str:
    """All texts of the product, each as it is when its parts are joined; what is filled in is left out."""
    found: list[str] = []
    for package in ("agent_core", "channels", "gateway"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = (
                        str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                    )
                    found.append("".join(parts))
    return "\n".join(found)


def untrue(page: str, words: str) -> list[str]:
    parts = (part for quoted in _QUOTED.findall(page) for part in _GAP.split(quoted) if part)
    return [part for part in parts if part not in words and part not in _OF_OTHERS]


@pytest.fixture(scope="module")
def words() -> str:
    return product_words()


@pytest.mark.parametrize("page", PAGES)
def test_what_is_quoted_is_what_is_said(page: str, words: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert len(_QUOTED.findall(text)) >= 3
    assert untrue(text, words) == []


def test_another_wording_is_noticed(words: str) -> None:
    """The control."""
    assert untrue('| "this is said nowhere at all" | do |', words) == ["this is said nowhere at all"]
