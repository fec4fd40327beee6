"""A search ends, whatever the pattern, and takes nothing with it."""

from __future__ import annotations

import os
import re
import time

import pytest

from agent_core.tools.files.file_search import search_below
from agent_core.tools.files.file_search_child import glob_pattern


async def _search(folder, pattern="", glob="", **how):
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        return await search_below(
            handle,
            **{"pattern": pattern, "glob": glob, "ignore_case": False, "limit": 100, "forbidden": [], **how},
        )
    finally:
        os.close(handle)


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*b", r"(.*?,){25}P", r"a{1,60000}{1,60000}"])
async def test_a_pattern_that_takes_for_ever_is_ended(tmp_path, pattern):
    """What was found before stays, and the answer says that it stopped (or that the pattern is none)."""
    (tmp_path / "a").write_text("a$ ab ,P\n" + "a,1" * 3000 + "!\n" + "a" * 3000 + "!\n")
    from agent_core.errors import ToolRetry

    began = time.monotonic()
    try:
        found = await _search(tmp_path, pattern, seconds=1.0)
    except ToolRetry as error:
        assert "regular expression" in str(error)
    else:
        assert found.stopped or found.looked_at == 1
    assert time.monotonic() - began < 20

    assert (await _search(tmp_path, "a")).files  # the control: an honest one is not ended


async def test_that_pattern_would_hang_whoever_runs_it():
    """The negative control: within the process the same pattern takes twice as long for each letter."""

    def work(letters):
        began = time.process_time()
        re.search(r"(a+)+$", "a" * letters + "!")
        return time.process_time() - began

    assert work(20) > 2 * work(16)


async def test_the_child_does_not_follow_links_nor_enter_what_is_private(tmp_path):
    """Links, pipes, forbidden folders and files of several names hold nothing for it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "private").mkdir()
    for name in ("in/plain", "out/secret", "in/private/secret"):
        (tmp_path / name).write_text("needle")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "file").symlink_to(tmp_path / "out" / "secret")
    os.link(tmp_path / "out" / "secret", tmp_path / "in" / "twice")
    os.mkfifo(tmp_path / "in" / "pipe")
    status = (tmp_path / "in" / "private").stat()

    found = await _search(tmp_path / "in", "needle", forbidden=[(status.st_dev, status.st_ino)])
    assert [one["path"] for one in found.files] == ["plain"]
    named = await _search(tmp_path / "in", glob="**/*", forbidden=[(status.st_dev, status.st_ino)])
    assert {one["path"] for one in named.files} == {"plain", "twice"}


async def test_a_text_of_an_old_program_is_found_by_its_letters(tmp_path):
    """A file in the encoding of Windows, beside one in UTF-8."""
    for encoding in ("cp1252", "utf-8"):
        (tmp_path / encoding).write_text("Äpfel;3\n", encoding=encoding)

    found = await _search(tmp_path, "Äpfel")
    assert sorted(file["path"] for file in found.files) == ["cp1252", "utf-8"]


async def test_hits_are_bounded(tmp_path):
    """A hundred lines, cut around the match, and a note that there is more."""
    (tmp_path / "a").write_text("".join(f"{'x' * 2000}needle{number}{'y' * 2000}\n" for number in range(150)))

    found = await _search(tmp_path, "needle")
    assert found.more
    assert len(found.files[0]["lines"]) == 100
    assert all("needle" in text and len(text) <= 300 for _, text in found.files[0]["lines"])


@pytest.mark.parametrize(
    ("glob", "fits", "fits_not"),
    [
        ("*.md", ["a.md", ".md"], ["a.mdx", "b/a.md"]),
        ("**/*.md", ["a.md", "b/c/a.md"], ["b/c/a.txt"]),
        ("b/**", ["b/a", "b/c/d"], ["b", "c/b/a"]),
        ("a?[1].*", ["ax[1].c"], ["a/[1].c", "ax1.c"]),
    ],
)
def test_globs_mean_what_people_think(glob, fits, fits_not):
    """One star stays in a folder, two go deeper; brackets are letters."""
    pattern = glob_pattern(glob)
    assert all(pattern.fullmatch(name) for name in fits)
    assert not any(pattern.fullmatch(name) for name in fits_not)
