"""Scripts of skills are run by commands in the sandbox, as they are, and by nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_core.children.command_sandbox import CommandSandbox, SandboxFolders
from agent_core.children.rights import Ceilings
from agent_core.skills import SkillsLoader
from agent_core.skills.added_skills import AddedSkills
from agent_core.skills.skill_source import read_source
from agent_core.tools.files.command_basis import basis_of
from tests.file_tools_world import command_files
from tests.unit.agent_core.skills.sources import folder

from .conftest import HERE, proved

TEXT = b"---\nname: tea\ndescription: Tea.\n---\nBoil.\n"


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
async def test_a_command_runs_the_script_and_cannot_change_it(
    home: Path, tmp_path: Path, backend: str
) -> None:
    """Of a skill that is in use; of one that was changed since it was added nothing can be read."""
    source = folder(tmp_path / "source", {"SKILL.md": TEXT, "scripts/boil.sh": b"echo boiling\n"})
    added = AddedSkills(home / "workspace" / "skills", home / "state" / "skills.json")
    added.add("tea", read_source(source), source, "2026")
    sandbox = CommandSandbox(
        SandboxFolders(
            workspace=home / "workspace",
            home=home,
            private_in=home / "run" / "commands",
            readable=[Path(sys.base_prefix), HERE],
            readable_now=SkillsLoader(added.folder, added=added).usable_folders,
        ),
        limits=Ceilings(nice=0),
        backend=backend,
    )
    await proved(sandbox)
    assert (await sandbox.run("sh ../skills/tea/scripts/boil.sh", seconds=60)).head == b"boiling\n"
    for command in (
        "echo x > ../skills/tea/scripts/boil.sh",
        "touch ../skills/tea/x",
        "rm ../skills/tea/SKILL.md",
    ):
        await sandbox.run(command, seconds=60)  # `touch` says that it succeeds; see docs/shell-sandbox.md
    assert dict(read_source(added.folder / "tea").files) == dict(read_source(source).files)
    assert (await sandbox.run("cat ../skills/a/SKILL.md", seconds=60)).status != 0  # it is no sound skill
    (added.folder / "tea" / "scripts" / "boil.sh").write_bytes(b"echo evil\n")
    refused = await sandbox.run("sh ../skills/tea/scripts/boil.sh", seconds=60)
    assert refused.status != 0 and b"evil" not in refused.head
    assert (await sandbox.run("cat ../skills/tea/SKILL.md", seconds=60)).status != 0


def test_an_approval_is_one_of_the_scripts_as_they_are(home: Path) -> None:
    """However the command names them; the control is a file that no command can read."""
    script = folder(home / "workspace" / "skills" / "a", {"run.sh": b"echo one\n"}) / "run.sh"
    commands = ("cd ../skills/a && sh run.sh", "sh ../skills/a/run.sh", "sh ../skills/*/*.sh")
    files = command_files(home / "workspace")
    before = [basis_of(files, command) for command in commands]
    (home / "workspace" / "MEMORY.md").write_text("other")
    assert [basis_of(files, command).state for command in commands] == [one.state for one in before]
    script.write_bytes(b"echo two\n")
    after = [basis_of(files, command) for command in commands]
    assert all(one.state != two.state for one, two in zip(before, after, strict=True))
    assert "echo two" in "\n".join(after[1].shown)
