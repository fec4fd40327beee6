"""Skills are found, checked, and never a reason to stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent_core.errors import SkillInvalid
from agent_core.models import Skill
from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
from agent_core.skills.skill_document import MAX_SKILL_BYTES, parse_skill


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def skill(name: str = "tea", extra: str = "", body: str = "Boil water.") -> str:
    return f'---\nname: {name}\ndescription: "How to make tea."\n{extra}---\n\n{body}\n'


def test_the_memory_skill_is_bundled() -> None:
    """It comes with the package, is not always shown, requires nothing, and tells of both levels."""
    loader = SkillsLoader(BUNDLED_SKILLS)

    (memory,) = loader.list_skills()
    assert (memory.name, memory.always, memory.missing) == ("memory", False, ())
    body = loader.load_skill_body("memory")
    for part in ("## Your Memory", "## Session Summary", "memory_write", "replaces", "300 words"):
        assert part in body
    assert "---" not in body.splitlines()[0]
    assert loader.problems == []


def test_skills_are_listed_by_name_with_what_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs and variables that are not there are named; the skill stays in the list."""
    put(tmp_path, "z", skill("zebra", "always: true\n"))
    put(tmp_path, "a", skill("ant", "requires:\n  bins: [no-such-program-x, sh]\n  env: [SET, UNSET]\n"))
    monkeypatch.setenv("SET", "1")
    monkeypatch.setenv("UNSET", "")
    loader = SkillsLoader(tmp_path)

    ant, zebra = loader.list_skills()
    assert ant == Skill(
        "ant", "How to make tea.", False, str(tmp_path / "a" / "SKILL.md"), ("no-such-program-x", "$UNSET")
    )
    assert not ant.available and zebra.available and zebra.always


def test_a_later_folder_wins(tmp_path: Path) -> None:
    """A workspace may replace a bundled skill by one of the same name."""
    put(tmp_path / "one", "tea", skill(body="old"))
    put(tmp_path / "two", "tea", skill(body="new"))

    assert SkillsLoader(tmp_path / "one", tmp_path / "two").load_skill_body("tea") == "new"
    assert SkillsLoader(tmp_path / "nowhere").list_skills() == []


BAD = {
    "no front matter": "just text",
    "not closed": "---\nname: x\ndescription: y\n",
    "not yaml": "---\nname: [\n---\n",
    "no mapping": "---\n- a\n---\n",
    "no name": "---\ndescription: y\n---\n",
    "path name": skill("../../etc/passwd"),
    "dots": skill("'..'"),
    "slash": skill("a/b"),
    "capital": skill("Tea"),
    "newline": skill('"a\\nb"'),
    "hyphen at the end": skill("tea-"),
    "too long a name": skill("t" * 65),
    "a mark": skill("'te\u0301a!'"),
    "no description": "---\nname: x\n---\n",
    "always": skill(extra="always: sometimes\n"),
    "requires": skill(extra="requires: [jq]\n"),
    "bins": skill(extra="requires: {bins: jq}\n"),
    "bin path": skill(extra="requires: {bins: [/bin/sh]}\n"),
    "env": skill(extra="requires: {env: [[A]]}\n"),
    "object": "---\nname: !!python/object/apply:os.system [id]\ndescription: y\n---\n",
    "long front matter": skill(extra=f"note: {'x' * 17_000}\n"),
    "latin 1": skill(body="x").encode() + b"\xe9",
    "too long": skill(body="x" * MAX_SKILL_BYTES),
    "bomb": "---\na: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nname: *c\ndescription: d\n---\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_bad_skill_is_reported_and_passed_over(tmp_path: Path, text: str | bytes) -> None:
    """Whatever is wrong with one, the others are there; the report names the file and comes once."""
    bad = put(tmp_path, "bad", text)
    put(tmp_path, "tea", skill())
    loader = SkillsLoader(tmp_path)

    with capture_logs() as logs:
        for _ in range(3):
            assert [each.name for each in loader.list_skills()] == ["tea"]
    assert [(log["event"], log["file"]) for log in logs] == [("skill.skipped", str(bad))]
    (problem,) = loader.problems
    assert problem.startswith(str(bad)) and len(problem) < 500


def test_a_second_skill_of_a_name_is_reported(tmp_path: Path) -> None:
    """Within one folder the first one counts."""
    put(tmp_path, "a", skill(body="first"))
    put(tmp_path, "b", skill(body="second"))
    loader = SkillsLoader(tmp_path)

    assert loader.load_skill_body("tea") == "first"
    assert "second skill" in loader.problems[0]


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """No link makes a file from elsewhere a skill."""
    elsewhere = put(tmp_path / "elsewhere", "x", skill())
    (tmp_path / "skills" / "link").mkdir(parents=True)
    (tmp_path / "skills" / "link" / "SKILL.md").symlink_to(elsewhere)
    (tmp_path / "skills" / "folder").symlink_to(elsewhere.parent)
    loader = SkillsLoader(tmp_path / "skills")

    assert loader.list_skills() == []
    assert len(loader.problems) == 2


def test_changes_are_seen_without_a_restart(tmp_path: Path) -> None:
    """A skill that is mended, changed or removed is so at the next look."""
    path = put(tmp_path, "tea", "broken")
    loader = SkillsLoader(tmp_path)
    assert loader.list_skills() == []
    path.write_text(skill(body="one"))
    assert loader.load_skill_body("tea") == "one"
    path.write_text(skill(body="two"))
    os.utime(path, (1, 1))
    assert loader.load_skill_body("tea") == "two"
    path.unlink()
    with pytest.raises(SkillInvalid):
        loader.load_skill_body("tea")


def test_windows_line_ends_and_marks_are_read() -> None:
    """A file from another editor is the same skill; a long description is shortened for the index."""
    raw = b"\xef\xbb\xbf" + skill(body="a\n\n---\n\nb").replace("\n", "\r\n").encode()
    assert parse_skill(raw).body == "a\n\n---\n\nb"
    long = parse_skill(f"---\nname: x\ndescription: {'word ' * 400}\n---".encode())
    assert len(long.description) == 1024 and long.description.endswith("…")
    assert long.body == ""


@given(
    st.binary(max_size=300)
    | st.text(max_size=200).map(lambda text: f"---\n{text}\n---\nx".encode("utf-8", "replace"))
)
def test_any_bytes_are_a_skill_or_invalid(raw: bytes) -> None:
    """Nothing in a file is an exception of another kind."""
    try:
        parse_skill(raw)
    except SkillInvalid:
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="folders have bits there")
def test_folders_that_begin_with_a_dot_are_nothing(tmp_path: Path) -> None:
    """Caches and hidden folders are no skills."""
    put(tmp_path, ".git", skill())
    put(tmp_path, "__pycache__", skill())

    assert SkillsLoader(tmp_path).problems == []
