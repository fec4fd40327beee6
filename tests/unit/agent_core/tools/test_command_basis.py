"""What a command is based on: if it changes after a yes, the yes was for something else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent_core.tools.files import command_basis, workspace_contents
from agent_core.tools.files.command_basis import Basis
from tests.file_tools_world import command_files


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with scripts, data, a folder of both, links, and a repository."""
    at = tmp_path / "workspace" / "work"
    for name, text in {
        "run.sh": "touch ran\n. ./steps.txt\n",
        "steps.txt": "touch ran\n",
        "part": "touch ran\n",
        "all.sh": "for each in parts/*; do . $each; done\n",
        "each.sh": "ls parts | xargs sh\n",
        "in_all.sh": "run-parts parts\n",
        "here.sh": "run-all . now\n",
        "parts/one": "touch ran\n",
        "parts/deep/two": "touch ran\n",
        "jobs/a1.log": "touch ran\n",
        "repo/.git/config": "[alias]\n",
        "repo/.git/index": "1",
        "repo/.git/hooks/pre-commit": "true\n",
        "repo/.envrc": "true\n",
        "options.sh": "make -fpart\n",
        "big.sh": "#" * 300_000,
        "read.py": "print(open('numbers.csv').read())\n",
        "makefile": "include parts/*\n",
        "numbers.csv": "1,2\n",
        "other.csv": "1,2\n",
        "prog.c": "int main() { return 0; }\n",
        "SConstruct": "Program('prog.c')\n",
        "repo/.git/rebase-merge/git-rebase-todo": "exec true\n",
        "repo/.git/worktrees/one/config.worktree": "[alias]\n",
    }.items():
        path = at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (at / "link").symlink_to("part")
    (at / "chain").symlink_to("link")
    (at / "folder").symlink_to("parts/deep")
    return at


def basis_of(work: Path, command: str, *outside: str) -> Basis:
    return command_basis.basis_of(command_files(work.parent, *outside), command)


CHANGED = {
    # the command, and what changes behind its back
    "by its name": ("sh part", "part"),
    "in a script": ("sh run.sh", "steps.txt"),
    "by a link": ("sh link", "part"),
    "by a link to a link": ("sh chain", "part"),
    "in a folder by a link": ("sh folder/one", "parts/deep/two"),
    "in braces": ("bash -c 'sh p{ar,}t'", "part"),
    "by a folder": ("run-all parts", "parts/one"),
    "deep in a folder": ("run-all parts", "parts/deep/two"),
    "by a folder in a script": ("sh in_all.sh", "parts/deep/two"),
    "by this folder": ("run-all .", "parts/deep/two"),
    "by this folder in a script": ("sh here.sh", "parts/one"),
    "by a pattern in a script": ("sh all.sh", "parts/one"),
    "by xargs": ("xargs sh", "part"),
    "by xargs in a script": ("sh each.sh", "parts/one"),
    "by a pipe": ("ls | sh", "part"),
    "by code": ("python3 -c 'run(1)'", "part"),
    "by a number": ("printf '\\160art' > x; sh x", "part"),
    "what a job has said": ("sh jobs/a1.log", "jobs/a1.log"),
    "what jobs have said": ("cat jobs/*.log", "jobs/a1.log"),
    "settings of git": ("git -C repo status", "repo/.git/config"),
    "a hook of git": ("git commit", "repo/.git/hooks/pre-commit"),
    "hidden": ("direnv reload", "repo/.envrc"),
    "named in a long script": ("sh big.sh", "part"),
    "by make": ("make", "parts/one"),
    "data of a program": ("python3 read.py", "numbers.csv"),
    "in a program that nobody names": ("pytest", "read.py"),
    "behind an option": ("make -fpart", "part"),
    "behind several options": ("sed -nfpart numbers", "part"),
    "behind an option with a path": ("awk -fparts/one numbers", "parts/one"),
    "behind an option in a script": ("sh options.sh", "part"),
    "behind a sign": ("gcc @part", "part"),
    "a source": ("make prog", "prog.c"),
    "a file that a builder looks for": ("scons", "SConstruct"),
    "what a rebase has still to run": ("git rebase --continue", "repo/.git/rebase-merge/git-rebase-todo"),
    "settings of a further tree": ("git status", "repo/.git/worktrees/one/config.worktree"),
}


@pytest.mark.parametrize("how", CHANGED)
def test_what_a_command_may_run_counts(work: Path, how: str) -> None:
    command, name = CHANGED[how]
    before = basis_of(work, command)
    assert basis_of(work, command) == before
    assert before.unknown == ""
    (work / name).write_text("touch ran; echo changed\n")
    assert basis_of(work, command).state != before.state


@pytest.mark.parametrize("name", ["link", "chain", "folder"])
def test_a_link_that_leads_elsewhere_is_another_one(work: Path, name: str) -> None:
    before = basis_of(work, f"sh {name}/x")
    (work / name).unlink()
    (work / name).symlink_to("numbers.csv")
    assert basis_of(work, f"sh {name}/x").state != before.state


@pytest.mark.parametrize("name", ["other.csv", "repo/.git/index", "new.csv", "jobs/b2.csv"])
def test_data_that_nothing_names_counts_as_well(work: Path, name: str) -> None:
    before = basis_of(work, "sh part")
    (work / name).write_text("3,4\n")
    changed = basis_of(work, "sh part")
    assert changed.state != before.state
    assert changed.shown == before.shown


def test_a_log_of_a_background_command_grows_without_another_question(work: Path) -> None:
    """Unless the command names the log or its folder."""
    commands = ("sh part", "sh */b2.log", "grep -r x jobs")
    before = [basis_of(work, command).state for command in commands]
    (work / "jobs" / "b2.log").write_text("3,4\n")
    after = [basis_of(work, command).state for command in commands]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]


def test_what_is_written_again_unchanged_is_no_change(work: Path) -> None:
    """The control of all of them."""
    before = basis_of(work, "sh part")
    (work / "other.csv").write_text("1,2\n")
    (work / "parts" / "one").touch()
    assert basis_of(work, "sh part") == before


def test_what_a_scan_has_remembered_counts_as_long_as_it_is_so(work: Path) -> None:
    """The same files are asked about again, as a process does; the content is of the same size."""
    files = command_files(work.parent)
    before = command_basis.basis_of(files, "sh part").state
    time.sleep(0.06)
    assert command_basis.basis_of(files, "sh part").state == before
    (work / "other.csv").write_text("3,4\n")
    assert command_basis.basis_of(files, "sh part").state != before


@pytest.mark.parametrize(
    "command", ["sh {}/tool", "'{}/tool'", "sh<{}/tool", "A={}/tool; sh -c x", "sh {}/too\\l", '"{}/my tool"']
)
def test_a_file_of_another_folder_counts_where_its_whole_path_stands(
    work: Path, tmp_path: Path, command: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("tool", "my tool", "other"):
        (outside / name).write_text("true\n")
    (work / "away").symlink_to(outside / "tool")
    command = command.format(outside)

    def now(asked: str) -> str:
        return basis_of(work, asked, str(outside)).state

    before, linked = now(command), now("sh away")
    (outside / "other").write_text("false\n")
    assert (now(command), now("sh away")) == (before, linked)
    for name in ("tool", "my tool"):
        (outside / name).write_text("false\n")
    assert now(command) != before
    assert now("sh away") != linked


def test_of_too_many_files_what_is_named_whole_counts_and_the_rest_is_said(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them are seen may differ from look to look, so none of them counts."""
    known = basis_of(work, "sh part")
    monkeypatch.setattr(workspace_contents, "_MAX_ENTRIES", 5)
    before = basis_of(work, "sh part")
    assert "not fully known what the command runs" in before.unknown
    assert before.state != known.state
    assert before.shown[0].startswith("work/part, ")
    (work / "run.sh").write_text("changed")
    assert basis_of(work, "sh part") == before
    (work / "part").write_text("changed")
    assert basis_of(work, "sh part").state != before.state


def test_a_folder_that_cannot_be_looked_into_makes_it_unknown(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> object:
        raise PermissionError(13, "no")

    monkeypatch.setattr(workspace_contents, "_walk", refused)
    assert basis_of(work, "sh part").unknown
