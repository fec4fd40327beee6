"""A skill from a folder or an archive is read whole or not at all, whoever has made it."""

from __future__ import annotations

import os
import subprocess
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core.errors import SkillInvalid
from agent_core.skills.skill_source import (
    MAX_BYTES,
    digest_of,
    list_skill_files,
    read_skill_folder,
    read_source,
    source_label,
)
from tests.unit.agent_core.skills.sources import FILES, TEA, below, folder, member, tar, tar_of, zip_of


@pytest.mark.parametrize(
    "made",
    [
        lambda top: folder(top / "tea"),
        lambda top: tar_of(top / "tea.tar.gz", below("tea")),
        lambda top: tar_of(top / "tea.tar", below("./tea"), "w"),
        lambda top: zip_of(top / "tea.zip", FILES.items()),
        lambda top: zip_of(top / "tea.zip", below("repo-main/skills/tea").items()),
    ],
    ids=["folder", "tar.gz", "tar", "zip", "zip of a repository"],
)
def test_folders_and_archives_hold_the_same_skill(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    """The same files with the same hash, however they come."""
    found = read_source(made(tmp_path))
    assert dict(found.files) == FILES
    assert digest_of(found.files) == digest_of(FILES)


def test_the_hash_is_that_of_sha256sum(tmp_path: Path) -> None:
    """A person can compare it with the tools of the system."""
    command = "find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == digest_of(FILES)


def bomb(path: Path) -> Path:
    return tar_of(path, {"tea/SKILL.md": TEA, "tea/zeros": bytes(MAX_BYTES + 1)})


def long_header(path: Path) -> Path:
    info, content = member("tea/SKILL.md", TEA)
    info.pax_headers = {"comment": "x" * 200_000}
    return tar(path, [(info, content)])


def unicode_twins(path: Path) -> Path:
    return tar_of(path, {**below("tea"), "tea/caf\u00e9.md": b"1", "tea/cafe\u0301.md": b"2"})


def link_in_zip(path: Path) -> Path:
    info = zipfile.ZipInfo("tea/link")
    info.external_attr = 0o120777 << 16
    return zip_of(path, [*below("tea").items(), (info, b"/etc/passwd")])


def encrypted(path: Path) -> Path:
    content = bytearray(zip_of(path, below("tea").items()).read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        found = content.find(mark)
        while found >= 0:
            content[found + at] |= 1
            found = content.find(mark, found + 4)
    path.write_bytes(content)
    return path


def cut(path: Path) -> Path:
    path.write_bytes(tar_of(path, {**below("tea"), "tea/more": os.urandom(5000)}).read_bytes()[:-3000])
    return path


def many_in_zip(path: Path) -> Path:
    return zip_of(path, [*below("tea").items(), *((f"tea/{n}", b"") for n in range(6000))])


EVIL = {
    "up": lambda path: tar_of(path, {**below("tea"), "tea/../../evil": b"x"}),
    "up elsewhere": lambda path: tar_of(path, {**below("tea"), "../evil": b"x"}),
    "up in a zip": lambda path: zip_of(path, [*below("tea").items(), ("../evil", b"x")]),
    "absolute": lambda path: tar_of(path, {**below("tea"), "/etc/evil": b"x"}),
    "drive and backslash": lambda path: zip_of(path, [*below("tea").items(), ("tea\\..\\evil", b"x")]),
    "control character": lambda path: tar_of(path, {**below("tea"), "tea/a\x1b[2Jb": b"x"}),
    "turned direction": lambda path: tar_of(path, {**below("tea"), "tea/a\u202egpj.sh": b"x"}),
    "link": lambda path: tar(
        path, [member("tea/SKILL.md", TEA), member("tea/l", kind=tarfile.SYMTYPE, to="/etc")]
    ),
    "hard link": lambda path: tar(
        path, [member("tea/SKILL.md", TEA), member("tea/l", kind=tarfile.LNKTYPE, to="tea/SKILL.md")]
    ),
    "SKILL.md is a link": lambda path: tar(
        path, [member("tea/x", TEA), member("tea/SKILL.md", kind=tarfile.SYMTYPE, to="x")]
    ),
    "device": lambda path: tar(path, [member("tea/SKILL.md", TEA), member("tea/d", kind=tarfile.CHRTYPE)]),
    "pipe": lambda path: tar(path, [member("tea/SKILL.md", TEA), member("tea/p", kind=tarfile.FIFOTYPE)]),
    "link in a zip": link_in_zip,
    "twice": lambda path: tar(path, [member("tea/SKILL.md", TEA), member("tea/SKILL.md", TEA + b"evil")]),
    "twice in a zip": lambda path: zip_of(path, [("SKILL.md", TEA), ("SKILL.md", TEA + b"evil")]),
    "case": lambda path: tar_of(path, {**below("tea"), "tea/skill.md": b"evil"}),
    "case of a folder": lambda path: tar_of(path, {**below("tea"), "tea/Scripts/x.sh": b"evil"}),
    "ways of Unicode": unicode_twins,
    "a file as a folder": lambda path: tar_of(path, {**below("tea"), "tea/scripts": b"x"}),
    "bomb": bomb,
    "bomb elsewhere": lambda path: tar_of(path, {**below("tea"), "zeros": bytes(5 * MAX_BYTES)}),
    "bomb in a zip": lambda path: zip_of(path, [*below("tea").items(), ("tea/zeros", bytes(MAX_BYTES + 1))]),
    "many files": lambda path: tar_of(path, {**below("tea"), **{f"tea/{n}": b"" for n in range(600)}}),
    "very many elsewhere": lambda path: tar_of(
        path, {**below("tea"), **{f"x/{n}": b"" for n in range(6000)}}
    ),
    "very many in a zip": many_in_zip,
    "long header": long_header,
    "cut": cut,
    "encrypted": encrypted,
    "deep": lambda path: tar_of(path, {**below("tea"), "tea/" + "a/" * 70 + "x": b""}),
    "no skill": lambda path: tar_of(path, {"tea/README.md": b"x"}),
    "two skills": lambda path: tar_of(path, {**below("a"), **below("b")}),
    "no archive": lambda path: path.write_bytes(b"hello") and path,
    "empty": lambda path: path.write_bytes(b"") or path,
    "too large": lambda path: path.write_bytes(os.urandom(MAX_BYTES + 1)) and path,
}


@pytest.mark.parametrize("made", EVIL.values(), ids=EVIL.keys())
def test_an_archive_that_is_not_just_a_skill_is_refused(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    """With a reason, and without anything on the disk."""
    (tmp_path / "in").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile says that a name is there twice
        path = made(tmp_path / "in" / "source")
    with pytest.raises(SkillInvalid) as said:
        read_source(path)
    assert 10 < len(str(said.value)) < 500
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["in", "source"]


def test_what_lies_beside_the_skill_does_not_hinder(tmp_path: Path) -> None:
    """The control: links and other skills of a repository; one of several is chosen by its name."""
    others = [member(f"r/{top}/SKILL.md", TEA) for top in ("b", "b/examples/inner")]
    link = member("r/link", kind=tarfile.SYMTYPE, to="/etc/passwd")
    path = tar(
        tmp_path / "r.tgz", [link, *others, *(member(f"r/a/{name}", text) for name, text in FILES.items())]
    )
    with pytest.raises(SkillInvalid, match=r"several skills: a, b\. Choose one with --name"):
        read_source(path)
    found = read_source(path, "a")
    assert (found.place, dict(found.files)) == ("r/a", FILES)


def test_what_is_hidden_is_left_out_and_named(tmp_path: Path) -> None:
    """A checkout's own folder, and what programs leave behind, are no part of the skill."""
    top = folder(
        tmp_path / "tea", {**FILES, ".git/config": b"x", ".env": b"x", "scripts/__pycache__/a.pyc": b"x"}
    )
    found = read_source(top)
    assert dict(found.files) == FILES
    assert set(found.left_out) == {".git", ".env", "scripts/__pycache__"}
    assert list_skill_files(top) == sorted(FILES)


@pytest.mark.parametrize("kind", ["file", "folder", "skill", "pipe"])
def test_links_and_pipes_in_a_folder_are_refused(tmp_path: Path, kind: str) -> None:
    """A link would bring a file in that the person has not named; nothing waits for a pipe."""
    top = folder(tmp_path / "tea")
    secret = folder(tmp_path / "elsewhere", {"secret": b"key"})
    if kind == "pipe":
        os.mkfifo(top / "pipe")
    elif kind == "skill":
        (top / "SKILL.md").rename(top / "real.md")
        (top / "SKILL.md").symlink_to("real.md")
    else:
        (top / "link").symlink_to(secret if kind == "folder" else secret / "secret")
    with pytest.raises(SkillInvalid):
        read_skill_folder(top)


def test_a_checkout_is_named_with_its_commit_without_running_git(tmp_path: Path) -> None:
    """Its settings could run programs; what is damaged in it hinders nothing."""
    top = folder(tmp_path / "repo" / "skills" / "tea")

    def run(*words: str) -> str:
        words = ("git", "-C", str(tmp_path / "repo"), *words)
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    run("init", "-q")
    run("add", ".")
    run("-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "x")
    commit = run("rev-parse", "HEAD")[:12]
    assert source_label(top) == f"{top} (git {commit})"
    run("checkout", "-q", "--detach")
    assert source_label(top) == f"{top} (git {commit})"
    (tmp_path / "repo" / ".git" / "HEAD").write_text("ref: refs/../../../../etc/passwd")
    assert source_label(top) == f"{top} (git without a commit)"
    (tmp_path / "repo" / ".git" / "HEAD").unlink()
    os.mkfifo(tmp_path / "repo" / ".git" / "HEAD")
    assert source_label(top) == f"{top} (git without a commit)"
    with pytest.raises(SkillInvalid, match="not a file"):
        read_source(tmp_path / "repo" / ".git" / "HEAD")
    assert source_label(folder(tmp_path / "plain")) == str(tmp_path / "plain")
