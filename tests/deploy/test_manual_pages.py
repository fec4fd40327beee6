"""`make docs` renders each page of the manual, with a search, and the pages need no other host."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600, func_only=True)]
_FROM_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^\s>]*")
_NO_LOAD = re.compile(r"rel=[\"']?(?:canonical|next|prev)")


def loaded(page: str) -> list[str]:
    """What a page loads from other hosts."""
    return [each for each in _FROM_ELSEWHERE.findall(page) if not _NO_LOAD.search(each)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    subprocess.run(["make", "-s", "docs"], cwd=folder, check=True)
    assert subprocess.check_output(["git", "status", "--porcelain"], cwd=folder, text=True) == ""
    return folder / "site"


def test_each_page_is_there_and_found(site):
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert names <= {path.stem for path in (site / "docs").glob("*.html")}
    found = {
        each["location"].partition("#")[0] for each in json.loads((site / "search.json").read_text())["items"]
    }
    assert {f"docs/{name}.html" for name in names} <= found


def test_nothing_comes_from_another_host(site):
    assert {
        path.name: loaded(path.read_text()) for path in site.rglob("*.html") if loaded(path.read_text())
    } == {}


def test_what_comes_from_another_host_is_noticed():
    """The control."""
    assert loaded('<script src="https://cdn.example/x.js"></script>')
    assert not loaded('<a href="https://example.org/">')
