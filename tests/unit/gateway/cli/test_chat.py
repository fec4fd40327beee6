"""`squidbot chat` as a person has it: a real process, with a pipe or with a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from contextlib import contextmanager

import pytest

from tests.command_fork import start_command
from tests.command_line import CONFIG, daemon, squidbot


class Terminal:
    """A process with a terminal of its own, and what it has shown."""

    def __init__(self, home, *arguments):
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "SQUIDBOT_HOME": str(home)}
        self.process = start_command(
            *arguments, env=env, stdin=theirs, stdout=theirs, stderr=theirs, in_terminal=True
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text):
        os.write(self._ours, text.encode())

    def wait_for(self, text, limit_s=20):
        give_up_at = time.monotonic() + limit_s
        while text not in self.shown:
            assert time.monotonic() < give_up_at, self.shown
            self._read(0.2)

    def ended(self, limit_s):
        """Its exit code, once it has ended; what it showed last is read."""
        give_up_at = time.monotonic() + limit_s
        while self.process.poll() is None:
            assert time.monotonic() < give_up_at, f"still there: {self.shown}"
            self._read(0.05)
        self._read(0)
        return self.process.returncode

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self, limit_s):
        try:
            while select.select([self._ours], [], [], limit_s)[0]:
                self.shown += os.read(self._ours, 65536).decode(errors="replace")
                limit_s = 0
        except OSError:
            time.sleep(limit_s)  # everybody has closed the other side


@contextmanager
def terminal(home, *arguments):
    """`squidbot chat` in a terminal, ready to be typed into."""
    screen = Terminal(home, "chat", *arguments)
    try:
        screen.wait_for("> ")
        yield screen
    finally:
        screen.close()


@pytest.fixture
def home(tmp_path):
    root = tmp_path / "h"
    root.mkdir(mode=0o700)
    (root / "squidbot.yaml").write_text(CONFIG)
    return root


class TestPipe:
    def test_lines_that_get_one_answer_together_do_not_keep_it_waiting(self, home):
        """What came while it thought is one turn with one answer; then nothing is open any more."""
        done = squidbot(home, "chat", stdin="!slow 1\none\ntwo\n")
        assert (done.returncode, done.stderr) == (0, "")
        # Which of them share a turn is up to the machine; the first of a turn makes the answer.
        assert "took a while" in done.stdout

    def test_the_last_line_needs_no_end(self, home):
        """As `printf hello | squidbot chat` has it, and a file does not keep anybody waiting."""
        assert "demo model" in squidbot(home, "chat", stdin="hello").stdout
        (home / "in.txt").write_text("hello")
        with (home / "in.txt").open() as file:
            done = squidbot(home, "chat", stdin=file)
        assert done.returncode == 0
        assert "demo model" in done.stdout

    def test_a_conversation_has_a_name_that_can_be_kept(self, home):
        """Otherwise it says so in a sentence, and takes nothing that nobody would answer."""
        for name, why in (
            ("", "a name, such as main"),
            (" ", "a name, such as main"),
            ("x" * 2000, "shorter"),
        ):
            done = squidbot(home, "chat", "--session", name, stdin="hello")
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert why in done.stderr

    def test_a_long_answer_comes_in_one_piece(self, home):
        """It is not left behind after its first part."""
        assert len(squidbot(home, "chat", stdin="!long 40000\n").stdout) > 39_000


class TestTerminal:
    def test_ctrl_c_ends_it_at_once(self, home):
        """Not only after the next Enter."""
        with terminal(home) as screen:
            screen.type("hello\n")
            screen.wait_for("demo model")  # so it waits for the keyboard again
            screen.type("\x03")
            assert screen.ended(10) == 130
            assert "Traceback" not in screen.shown

    def test_a_defect_is_told_in_words_and_the_traceback_stays_in_the_file(self, home):
        """The conversation is not torn apart by log lines."""
        with terminal(home) as screen:
            screen.type("!crash\n")
            screen.wait_for("Sorry")
            assert "Traceback" not in screen.shown and "turn.dead_lettered" not in screen.shown
        assert "turn.defect" in (home / "chat.log").read_text()

    def test_an_answer_that_grew_is_shown_once(self, home):
        """Also if it ended with white space while it grew."""
        with terminal(home) as screen:
            screen.type("!long 120\n")
            screen.wait_for("wanted.\r\n> ")
            assert screen.shown.count("This line is one of many") == 2

    def test_leaving_does_not_wait_and_the_answer_comes_at_once_the_next_time(self, home):
        """The daemon keeps it and notices that somebody is there again."""
        with daemon(home):
            with terminal(home) as screen:
                screen.type("!slow 1\n")
                screen.type("/quit\n")
                assert screen.ended(5) == 0
                assert "kept for the next time" in screen.shown
            time.sleep(2)
            with terminal(home) as screen:
                screen.wait_for("There you are", limit_s=5)
        assert (home / "out.txt").read_text().count("message.kept") <= 1

    def test_a_daemon_that_stops_is_told_in_words(self, home):
        """With an exit code of its own and no traceback."""
        with daemon(home) as process, terminal(home) as screen:
            process.send_signal(signal.SIGTERM)
            assert screen.ended(20) == 1
            assert "the daemon has stopped" in screen.shown
            assert "Traceback" not in screen.shown
