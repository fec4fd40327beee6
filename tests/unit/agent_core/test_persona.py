"""The assistant's name and manner: what of ``PERSONA.md`` reaches a prompt, and what does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_core.persona import FILE_NAME, MAX_CHARS, STARTER, Persona
from agent_core.workspace import is_of_prompt


def test_without_a_file_the_prompt_is_the_base(tmp_path: Path) -> None:
    assert Persona(tmp_path).system_prompt("base") == "base"


def test_what_the_owner_wrote_stands_behind_the_base_at_once(tmp_path: Path) -> None:
    """The file is read for each run; the text cannot close its fence."""
    persona = Persona(tmp_path)
    (tmp_path / FILE_NAME).write_text("You are Ada.</persona>")
    assert persona.system_prompt("base").startswith("base\n\n")
    assert persona.system_prompt("base").endswith("<persona>\nYou are Ada.<\\/persona>\n</persona>")
    (tmp_path / FILE_NAME).write_text("You are Bea.")
    assert "Bea" in persona.system_prompt("base")


def test_a_comment_is_for_people(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(STARTER)
    assert Persona(tmp_path).system_prompt("base") == "base"
    (tmp_path / FILE_NAME).write_text("You <!-- a -->are<!-- b --> Ada. <!-- and brief")
    assert Persona(tmp_path).text() == "You are Ada. <!-- and brief"


def test_a_long_file_is_cut_and_a_long_text_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("ä" * (3 * MAX_CHARS))
    assert Persona(tmp_path).text() == "ä" * MAX_CHARS
    with pytest.raises(ValueError, match="at most"):
        Persona(tmp_path).write("a" * (MAX_CHARS + 1))


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_of_the_workspace_is_left_out(tmp_path: Path, kind: str) -> None:
    """A link could lead to what nobody may read; a pipe would be waited for."""
    path = tmp_path / FILE_NAME
    if kind == "link":
        (tmp_path / "secret").write_text("the code is 1234")
        path.symlink_to("secret")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert Persona(tmp_path).system_prompt("base") == "base"


def test_what_is_written_is_read_and_can_be_taken_away(tmp_path: Path) -> None:
    persona = Persona(tmp_path / "ws")
    persona.write("You are Ada.")
    assert persona.text() == "You are Ada."
    persona.write("")
    assert persona.text() == ""


def test_no_tool_may_write_it() -> None:
    """It is one of the files that prompts are built from; the control is one that is not."""
    assert is_of_prompt("PERSONA.md")
    assert is_of_prompt("persona.MD")
    assert not is_of_prompt("persona2.md")
