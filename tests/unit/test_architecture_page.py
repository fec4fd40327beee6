"""What the pages point at is there: one that sends people to files, tests and commands that are gone is worse than none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.cli.commands import app
from gateway.cli.manual import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "ARCHITECTURE.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("design", "dependencies", "memory")),
]
PAGE = "\n".join(page.read_text() for page in PAGES)
_NAMED = re.compile(r"`([\w/]+\.py)` `([\w.]+)`")
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


def gone_names(page: str) -> set[str]:
    """What a page calls a part of a file, and is not in it."""
    return {
        f"{path} {name}"
        for path, name in _NAMED.findall(page)
        if not any(re.search(rf"\b{name.rpartition('.')[2]}\b", one.read_text()) for one in _files(path))
    }


def _files(path: str) -> list[Path]:
    near = [one for folder in _FOLDERS if (one := ROOT / folder / path).is_file()]
    return near or [one for top in ("agent_core", "channels", "gateway") for one in (ROOT / top).rglob(path)]


def test_every_name_behind_a_file_is_in_it() -> None:
    """The file of a row, and the function in it that does what the row says."""
    assert len(_NAMED.findall(PAGE)) > 10
    assert gone_names(PAGE) == set()
    assert gone_names("`memory/manager.py` `nobody`, `memory/manager.py` `MemoryManager`") == {
        "memory/manager.py nobody"
    }


def test_only_the_commands_that_the_page_names_take_no_home():
    """What a page says of all commands is true of all but those that it names."""
    said = re.search(r"those that need no home: (.+?)\.", (ROOT / "docs/commands.md").read_text(), re.DOTALL)
    without = {
        name
        for name, command in commands(app).items()
        if not {"--home", "--config"}
        <= {n for each in command.assemble_argument_collection() for n in each.names}
    }
    assert said is not None
    assert set(re.findall(r"`([^`]+)`", said[1])) == without
