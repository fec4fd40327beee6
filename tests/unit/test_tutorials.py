"""The pages about plugins show the code of the examples, which other tests build and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"own-channel.md": "squidbot-irc", "own-tools.md": "squidbot-tool-dice"}
_BLOCK = re.compile(r"^```(?:python|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def differences(page: str, files: list[str]) -> list[str]:
    """Blocks of a page that are in none of the files, and lines of the files that are in no block."""
    blocks = _BLOCK.findall(page)
    wrong = [block for block in blocks if not any(block.strip("\n") in file for file in files)]
    shown = {line for block in blocks for line in block.splitlines()}
    return wrong + [line for file in files for line in file.splitlines() if line not in shown]


def example(name: str) -> list[str]:
    folder = ROOT / "examples" / name
    return [
        path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".toml") and "build" not in path.parts
    ]


@pytest.mark.parametrize(("page", "name"), PAGES.items())
def test_a_page_shows_its_example_and_all_of_it(page, name):
    """Word for word: what is printed works."""
    assert differences((ROOT / "docs" / page).read_text(), example(name)) == []


def test_a_difference_is_noticed():
    """The negative control: a line that was changed, and one that was left out."""
    page = (ROOT / "docs" / "own-channel.md").read_text()
    assert differences(page.replace("await uncertain()", "await certain()"), example("squidbot-irc"))
    assert differences(page.replace("ANSWER_S = 30.0\n", ""), example("squidbot-irc"))
