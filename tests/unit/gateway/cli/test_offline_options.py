"""Options of commands that need no daemon, as somebody types them."""

from __future__ import annotations

import anyio
import pytest

from tests.command_line import CONFIG, fill, squidbot


@pytest.fixture
def filled(tmp_path):
    root = tmp_path / "h"
    root.mkdir(mode=0o700)
    (root / "squidbot.yaml").write_text(CONFIG)
    anyio.run(fill, root)
    return root


@pytest.mark.slow  # many processes, one after the other
def test_an_encrypted_backup_comes_back(filled, tmp_path):
    """Nobody reads it without the passphrase."""
    word, wrong, folder = tmp_path / "word", tmp_path / "wrong", tmp_path / "backups"
    word.write_text("a long passphrase\n")
    wrong.write_text("another passphrase\n")
    made = squidbot(filled, "backup", str(folder), "--encrypt", "--passphrase-file", str(word))
    assert made.returncode == 0, made.stderr
    [file] = folder.iterdir()
    assert file.name.endswith(".tar.gz.enc")
    assert b"likes coffee" not in file.read_bytes()
    refused = squidbot(tmp_path / "n", "restore", str(file), "--yes", "--passphrase-file", str(wrong))
    assert (refused.returncode, (tmp_path / "n").exists()) == (77, False)

    done = squidbot(tmp_path / "n", "restore", str(file), "--yes", "--passphrase-file", str(word))
    assert done.returncode == 0, done.stderr
    assert "likes coffee" in squidbot(tmp_path / "n", "memory", "show").stdout

    again = squidbot(filled, "backup", str(folder), "--keep", "1")
    assert again.returncode == 0, again.stderr
    [left] = folder.iterdir()
    assert left.name.endswith(".tar.gz")


@pytest.mark.slow
def test_versions_of_a_memory_are_compared_by_their_numbers(filled):
    """The newest with the one before, or those that are named, either way round."""
    said = squidbot(filled, "memory", "diff")
    assert {"-likes tea", "+likes coffee"} <= set(said.stdout.splitlines()), said.stderr
    turned = squidbot(filled, "memory", "diff", "--older", "2", "--newer", "1")
    assert {"+likes tea", "-likes coffee"} <= set(turned.stdout.splitlines()), turned.stderr
    nothing = squidbot(filled, "memory", "diff", "--older", "7")
    assert nothing.returncode != 0
    assert "7" in nothing.stderr
    assert "Traceback" not in nothing.stderr
