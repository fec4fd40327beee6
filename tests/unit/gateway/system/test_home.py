"""The home folder: where it is, what is made, and clear words when it cannot be used."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.cli.check.machine_checks import ownership
from gateway.errors import AlreadyRunning, StateUnusable
from gateway.system.home import Home, _explain, find_home, open_home, short_path
from gateway.system.lock import hold_home, holder_of

_NOBODY = 65534


@contextmanager
def powerless():
    """As a user who may not write what belongs to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


class TestPlace:
    def test_the_argument_outranks_the_environment_and_that_the_default(self, tmp_path):
        """--home, then $SQUIDBOT_HOME, then ~/.squidbot."""
        environ = {"SQUIDBOT_HOME": "/srv/bot"}
        assert find_home(tmp_path, environ) == tmp_path
        assert find_home(None, environ) == Path("/srv/bot")
        assert find_home(None, {}) == Path("~/.squidbot").expanduser()
        assert find_home("~/x", {}) == Path("~/x").expanduser()
        assert find_home("x", {}) == Path.cwd() / "x"

    def test_looking_makes_nothing(self, tmp_path):
        """Asking where things are leaves no trace."""
        home = Home(find_home(tmp_path / "h", {}))
        assert home.control_socket == tmp_path / "h" / "run" / "control.sock"
        assert home.path("workspace") == tmp_path / "h" / "workspace"
        assert home.path("/elsewhere") == Path("/elsewhere")
        assert not home.root.exists()


class TestMaking:
    def test_folders_are_for_the_owner_alone(self, tmp_path):
        """Whatever the umask, nobody else may look in."""
        old = os.umask(0)
        try:
            home = open_home(tmp_path / "deep" / "h")
        finally:
            os.umask(old)
        for path in [home.root, *home.root.iterdir()]:
            assert mode(path) == 0o700, path

    def test_it_can_be_opened_again(self, tmp_path):
        """The second start finds what the first one made."""
        (open_home(tmp_path / "h").root / "sessions" / "x").write_text("kept")
        assert (open_home(tmp_path / "h").root / "sessions" / "x").read_text() == "kept"

    def test_the_mode_of_a_folder_that_was_there_is_not_touched_but_complained_about(self, tmp_path):
        """A shared folder named by mistake must not be closed to everybody else."""
        root = tmp_path / "h"
        root.mkdir()
        root.chmod(0o777)
        open_home(root)
        assert mode(root) == 0o777
        [complaint] = ownership(Home(root), [])
        assert "chmod 700" in complaint.what_to_do
        root.chmod(0o700)
        assert list(ownership(Home(root), [])) == []


class TestTrouble:
    def test_a_folder_that_may_not_be_written_is_told_with_user_and_remedy(self, tmp_path):
        """Whoever starts it as the wrong user reads who may not do what."""
        root = tmp_path / "h"
        root.mkdir()
        root.chmod(0o500)
        tmp_path.chmod(0o755)
        with powerless(), pytest.raises(StateUnusable, match="chown") as caught:
            open_home(root)
        assert caught.value.exit_code == 74

    def test_a_file_in_its_place_is_told(self, tmp_path):
        """A file where the folder should be is named."""
        (tmp_path / "h").write_text("")
        with pytest.raises(StateUnusable, match="is a file"):
            open_home(tmp_path / "h")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root could harm another user's home")
    def test_root_does_not_work_on_another_users_home(self, tmp_path):
        """Files of root would lock the daemon's own user out."""
        root = tmp_path / "h"
        root.mkdir()
        os.chown(root, _NOBODY, _NOBODY)
        with pytest.raises(StateUnusable, match="sudo -u"):
            open_home(root)
        assert list(root.iterdir()) == []

    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (errno.EROFS, "read-only"),
            (errno.ENOSPC, "full disk"),
            (errno.EDQUOT, "full disk"),
            (errno.EACCES, "chown"),
            (errno.ENOTDIR, "is a file"),
            (errno.EIO, "Input/output error"),
        ],
    )
    def test_every_usual_trouble_has_its_words(self, number, words):
        """The text says what is wrong in words that are not those of the kernel."""
        assert words in _explain(Path("/srv/bot"), OSError(number, os.strerror(number), "/srv/bot/run"))


class TestLock:
    def test_a_second_holder_is_refused_and_told_the_process(self, tmp_path):
        """flock also holds between two descriptors of one process, so this is the real thing."""
        home = open_home(tmp_path / "h")
        with hold_home(home):
            assert holder_of(home) == os.getpid()
            with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}") as caught, hold_home(home):
                pass
        assert caught.value.exit_code == 78
        assert holder_of(home) is None
        with hold_home(home):
            pass

    def test_a_number_left_in_the_file_refuses_nobody(self, tmp_path):
        """The negative control: a pid file would; only the kernel's lock decides."""
        home = open_home(tmp_path / "h")
        home.lock_file.write_text(f"{os.getpid()} daemon\n")
        assert holder_of(home) is None
        with hold_home(home):
            pass

    def test_a_killed_holder_leaves_the_home_free(self, tmp_path):
        """SIGKILL needs no clean-up."""
        home = open_home(tmp_path / "h")
        code = (
            "import sys, time; from pathlib import Path; from gateway.system.home import Home; from gateway.system.lock import hold_home\n"
            "with hold_home(Home(Path(sys.argv[1]))): print('held', flush=True); time.sleep(60)"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"held\n"
            assert holder_of(home) == child.pid
            with pytest.raises(AlreadyRunning), hold_home(home):
                pass
            child.kill()
            child.wait()
        with hold_home(home):
            pass

    def test_a_run_folder_that_is_removed_lets_nobody_in(self, tmp_path):
        """Tidying up ``run/`` under a daemon; the control: a lock on the file in it would be gone with it."""
        home = open_home(tmp_path / "h")
        code = (
            "import sys, time; from pathlib import Path; from gateway.system.home import Home; from gateway.system.lock import hold_home\n"
            "with hold_home(Home(Path(sys.argv[1]))): print('held', flush=True); time.sleep(60)"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"held\n"
            shutil.rmtree(home.run)
            open_home(home.root)
            for _ in range(2):
                assert holder_of(home) == child.pid
                with pytest.raises(AlreadyRunning, match=f"process {child.pid}"), hold_home(home):
                    pass
            with home.lock_file.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            child.kill()
            child.wait()
        assert holder_of(home) is None
        with hold_home(home):
            pass

    def test_an_earlier_version_is_seen_by_its_file(self, tmp_path):
        """It locks the file only."""
        home = open_home(tmp_path / "h")
        with home.lock_file.open("w") as file:
            file.write("4711 daemon\n")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            assert holder_of(home) == 4711
            with pytest.raises(AlreadyRunning, match="process 4711"), hold_home(home):
                pass

    def test_a_daemon_waits_for_a_command_that_is_just_looking(self, tmp_path):
        """`squidbot status` at the wrong moment must not keep the service down."""
        home = open_home(tmp_path / "h")
        code = (
            "import sys, time; from pathlib import Path; from gateway.system.home import Home; from gateway.system.lock import hold_home\n"
            "with hold_home(Home(Path(sys.argv[1])), purpose='command'): print('held', flush=True); time.sleep(0.5)"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"held\n"
            assert holder_of(home) is None
            with hold_home(home):
                assert holder_of(home) == os.getpid()
            child.wait()


def test_a_long_path_of_a_socket_is_made_short(tmp_path):
    """The kernel takes 107 bytes; the folder may be deeper."""
    deep = tmp_path / ("x" * 100) / "y"
    deep.mkdir(parents=True)
    with short_path(deep / "control.sock") as short:
        assert len(short) < 107
        Path(short).write_text("here")
    assert (deep / "control.sock").read_text() == "here"
