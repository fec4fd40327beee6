"""`squidbot backup` and `restore` as they are typed: where the file goes, whose secrets are in it, what is said."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import anyio
import pytest

from gateway.settings import load_settings
from tests.home_world import CONFIG, fill

REPOSITORY = Path(__file__).resolve().parents[2]


def squidbot(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "gateway", *map(str, arguments)],
        cwd=REPOSITORY, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path):
    return anyio.run(fill, tmp_path / "home").home.root


def test_a_folder_that_is_missing_is_made(home, tmp_path):
    """`backup /srv/backups --keep 14` on a new machine; nothing is made where a disk is not mounted."""
    folder = tmp_path / "backups"
    done = squidbot("backup", folder, "--keep", "2", "--home", home)
    assert done.returncode == 0, done.stderr
    assert [path.name.startswith("squidbot-") for path in folder.iterdir()] == [True]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    done = squidbot("backup", tmp_path / "not mounted" / "backups", "--home", home)
    assert done.returncode == 73
    assert "cannot be created" in done.stderr
    assert not (tmp_path / "not mounted").exists()
    assert squidbot("backup", tmp_path / "one.tar.gz", "--home", home).returncode == 0
    assert (tmp_path / "one.tar.gz").is_file()


def test_a_backup_inside_of_the_home_stays_where_it_is(home):
    """In a container there is no other place; it can be restored again."""
    backup = home / "backups" / "b.tar.gz"
    backup.parent.mkdir()
    assert squidbot("backup", backup, "--home", home).returncode == 0
    for _ in range(2):
        done = squidbot("restore", backup, "--yes", "--replace", "--home", home)
        assert done.returncode == 0, done.stderr
        assert backup.is_file()
        assert (home / "gateway.db").is_file()


@pytest.fixture
def elsewhere(home, tmp_path):
    """A configuration in /etc, so to speak, with a secret beside it and a file that it reads."""
    folder = tmp_path / "etc"
    (folder / "secrets").mkdir(parents=True)
    (folder / "note").write_text("a-note")
    (folder / "secrets" / "matrix").write_text("c0rrect-horse")
    text = CONFIG.replace('"c0rrect-horse"', "${secret:matrix}").replace("@bob:hs.test", "${file:note}")
    config = folder / "squidbot.yaml"
    config.write_text(text.replace('"${file:note}"', '"@${file:note}:hs.test"'))
    for path in (config, folder / "note", folder / "secrets" / "matrix"):
        path.chmod(0o600)
    (home / "squidbot.yaml").unlink()
    return config


def test_secrets_that_lie_elsewhere_move_along(home, elsewhere, tmp_path):
    """With --with-secrets a restored home works by itself; what is not in the backup is named."""
    backup = tmp_path / "b.tar.gz"
    done = squidbot("backup", backup, "--with-secrets", "--home", home, SQUIDBOT_CONFIG=str(elsewhere))
    assert done.returncode == 0, done.stderr
    assert f"{elsewhere.parent / 'note'}, which the configuration names, is not in this backup" in done.stdout
    done = squidbot("restore", backup, "--yes", "--home", tmp_path / "new", "--json")
    assert done.returncode == 0, done.stderr
    secret = tmp_path / "new" / "secrets" / "matrix"
    assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == ("c0rrect-horse", 0o600)
    lacking = " ".join(json.loads(done.stdout)["configuration"])
    assert "note cannot be read" in lacking
    assert "no secret" not in lacking


def test_without_them_each_missing_one_is_named(home, elsewhere, tmp_path):
    """And a restore in the place of a home that has them leaves them where they are, so that it can start."""
    backup = tmp_path / "b.tar.gz"
    elsewhere.write_text(elsewhere.read_text().replace("${file:note}", "note"))
    done = squidbot("backup", backup, "--home", home, SQUIDBOT_CONFIG=str(elsewhere))
    assert done.returncode == 0, done.stderr
    with tarfile.open(backup) as tar:
        assert not [name for name in tar.getnames() if "secrets" in name]
    done = squidbot("restore", backup, "--yes", "--home", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "it cannot start before this is fixed" in done.stdout
    assert "there is no secret matrix" in done.stdout
    assert f"\nnext: squidbot check --home {tmp_path / 'new'}, then start the daemon" in done.stdout
    secrets = tmp_path / "new" / "secrets"
    secrets.mkdir(0o700)
    (secrets / "matrix").write_text("c0rrect-horse")
    done = squidbot("restore", backup, "--yes", "--replace", "--home", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "cannot start" not in done.stdout
    assert load_settings(tmp_path / "new" / "squidbot.yaml").channels.enabled()
