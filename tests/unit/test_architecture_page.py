"""What ARCHITECTURE.md and its pages in docs/ point at is there: a page that sends people to files and tests that are gone is worse than none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "ARCHITECTURE.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("design", "dependencies", "memory")),
]
PAGE = "\n".join(page.read_text() for page in PAGES)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:[\w*<>-]+/)+(?:[\w*.-]+\.(?:py|md|png|toml))?|[\w*]+\.py")
_FOLDERS = (
    "",
    "agent_core",
    "agent_core/memory",
    "agent_core/storage",
    "agent_core/tools",
    "agent_core/llm",
    "channels/email",
    "channels/matrix",
    "tests",
    "gateway",
)
_OF_A_HOME = ("sessions/", "memory/<id>", "state/", "run/", "workspace/")


def gone_tests(page: str, written: Iterable[str]) -> set[str]:
    """Names of tests in a page that nobody has written."""
    return set(re.findall(r"\btest_\w+\b(?!\.py)", page)) - set(written)


def gone_paths(page: str) -> set[str]:
    """Paths in a page at which there is nothing, whichever of our folders they are meant from."""
    named = {
        word for word in _CODE.findall(page) if _PATH.fullmatch(word) and not word.startswith(_OF_A_HOME)
    }
    return {word for word in named if not _found(word.replace("<name>", "*"))}


def _found(pattern: str) -> bool:
    near = [ROOT / folder for folder in _FOLDERS]
    if "/" not in pattern:  # beside the file that the same row names
        return any(
            True
            for top in ("agent_core", "channels", "gateway", "tests")
            for _ in (ROOT / top).rglob(pattern)
        )
    return any(True for folder in near if folder.is_dir() for _ in folder.glob(pattern.rstrip("/")))


@pytest.fixture(scope="module")
def written() -> set[str]:
    """The names of all tests."""
    names = (re.findall(r"def (test_\w+)", path.read_text()) for path in (ROOT / "tests").rglob("*.py"))
    return {name for found in names for name in found}


def test_every_test_that_the_page_names_is_there(written: set[str]) -> None:
    """Above all those of the table of the memory system."""
    assert len(re.findall(r"\btest_\w+\b(?!\.py)", PAGE)) > 25
    assert gone_tests(PAGE, written) == set()
    assert gone_tests("`test_nobody_has_written_this`", written) == {"test_nobody_has_written_this"}


def test_every_file_that_the_page_names_is_there() -> None:
    """Files and folders, from the root or from the package that the row is about."""
    assert gone_paths(PAGE) == set()
    assert gone_paths("see `agent_core/nowhere.py` and `gateway/`, `unit/test_none.py`") == {
        "agent_core/nowhere.py",
        "unit/test_none.py",
    }
