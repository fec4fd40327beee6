"""The command line: as a real process where it matters, plain words, exit codes, and the same answers either way."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from agent_core.messages import InboundMessage, Sender
from gateway.cli.manual import no_such_command
from gateway.operations import render
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import NewOutbound, Pending
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home
from gateway.system.terminal_text import duration
from tests.clock import EPOCH
from tests.command_line import CONFIG, ROOM, answer, daemon, fill, free_port, squidbot

STEERING = "a\x1b[31m b\x9b31m c\u202ed e\x7f f\u2028g \U000e0041 \U0001f600 ü"


@pytest.fixture
def home(tmp_path):
    root = tmp_path / "h"
    root.mkdir(mode=0o700)
    (root / "squidbot.yaml").write_text(CONFIG)
    return root


@pytest.fixture
def filled(home):
    anyio.run(fill, home)
    return home


async def fill_with_what_waits(root):
    """A message in quarantine whose text would steer a terminal, and two drafts."""
    store = await SqliteQueue.open(open_home(root).database, clock=SystemClock())
    message = InboundMessage(
        channel="terminal", account="local", native_id="q", session=ROOM,
        sender=Sender(address="eve"), text=STEERING, received_at=EPOCH,
    )  # fmt: skip
    await store.inbox.accept("terminal", "local", [Pending(message, quarantine="sender_not_verified")], {})
    await store.outbox.post([NewOutbound("terminal", "local", ROOM, f"draft {n}", hold=True) for n in (1, 2)])
    await store.aclose()


@pytest.mark.slow  # many processes, one after the other
class TestWhatWaitsForAPerson:
    def test_drafts_and_quarantine_are_decided_on_the_command_line(self, home):
        """Listed, let in, approved and thrown away, each once, also without a daemon."""
        anyio.run(fill_with_what_waits, home)
        [message] = answer(home, "inbox", "list", "--quarantine")["rows"]
        assert (message["state"], message["error"]) == ("quarantined", "sender_not_verified")
        second, first = answer(home, "inbox", "list", "--held")["rows"]
        assert "draft 1" in squidbot(home, "inbox", "list", "--held").stdout
        number = str(message["id"])
        assert "will be answered" in squidbot(home, "inbox", "release", number).stdout
        again = squidbot(home, "inbox", "release", number)
        assert (again.returncode, "is not in quarantine" in again.stdout) == (1, True)
        approved = answer(home, "inbox", "approve", str(first["id"]), "--text", "better")
        assert (approved["draft"]["state"], approved["draft"]["text"]) == ("pending", "better")
        assert "is thrown away" in squidbot(home, "inbox", "reject", str(second["id"])).stdout
        assert "it is dead" in squidbot(home, "inbox", "approve", str(second["id"])).stdout
        assert answer(home, "inbox", "list", "--held")["rows"] == []

    def test_each_has_the_name_by_which_the_bot_calls_it(self, home):
        """What the lists show is what the commands take, and what the owner is told in a conversation."""
        anyio.run(fill_with_what_waits, home)
        listed = squidbot(home, "inbox", "list", "--quarantine").stdout.splitlines()
        assert [line.split()[:2] for line in listed[1:]] == [["m1", "quarantined"]]
        drafts = squidbot(home, "inbox", "list", "--held").stdout.splitlines()
        assert [line.split()[0] for line in drafts[1:]] == ["d2", "d1"]
        assert answer(home, "inbox", "show", "d2")["text"] == "draft 2"
        assert "draft 2" in squidbot(home, "inbox", "show", "d2").stdout
        assert answer(home, "inbox", "show", "m1")["row"]["name"] == "m1"
        wrong = squidbot(home, "inbox", "approve", "m1", "--text", "other words")
        assert (wrong.returncode != 0, "m1 is a message" in wrong.stderr) == (True, True)
        for junk in ("x7", "m\u0663"):
            assert squidbot(home, "inbox", "drop", junk).returncode not in (0, 1), junk
        assert squidbot(home, "inbox", "retry", "d1").returncode != 0
        assert answer(home, "inbox", "approve", "d1")["draft"]["state"] == "pending"
        assert answer(home, "inbox", "drop", "D2")["draft"]["state"] == "dead"
        assert answer(home, "inbox", "approve", "m1")["changed"]
        assert "is given up" in squidbot(home, "inbox", "reject", "m1").stdout

    def test_nothing_that_people_write_steers_the_terminal(self, home):
        """In words and in JSON: no control characters of either set, nothing that turns the line around."""
        anyio.run(fill_with_what_waits, home)
        for arguments in (["list"], ["list", "--json"], ["show", "1"], ["show", "1", "--json"]):
            done = squidbot(home, "inbox", *arguments, environ={"PYTHONIOENCODING": "utf-8"})
            assert done.returncode == 0, done.stderr
            assert done.stdout.replace("\n", "").isprintable(), arguments
        assert answer(home, "inbox", "show", "1")["row"]["text"] == STEERING


class TestWords:
    def test_help_lists_every_command(self, tmp_path):
        """The interface is what the README says."""
        told = squidbot(tmp_path, "--help").stdout
        for command in ("run", "demo", "check", "chat", "status", "inbox", "sessions", "memory", "version"):
            assert f" {command} " in told
        assert "retry" in squidbot(tmp_path, "inbox", "--help").stdout

    def test_a_typing_error_is_told_and_is_exit_code_2_like_anywhere(self, tmp_path):
        """Unknown commands and options end with words, not with a traceback."""
        for arguments, told in (
            (("inbx",), "Did you mean `squidbot inbox`?"),
            (
                ("inbox", "lst"),
                "there is no command `squidbot inbox lst`. Did you mean `squidbot inbox list`?",
            ),
            (("inbox", "qqqq"), "There are: approve, "),
            (("status", "--hom", "x"), "--hom is no option of `squidbot status`; did you mean --home?"),
            (("files", "undo", "x"), 'is a whole number, not "x". Such as: squidbot files undo 12'),
            (("run", "--home"), "--home needs a value. Such as: squidbot run"),
            (("cron", "remove"), "`squidbot cron remove` needs "),
            (
                ("cron", "add", "call", "mum"),
                '"mum" is too much for `squidbot cron add`; a text of several words',
            ),
            (("logs", "--level", "loud"), "--level is one of debug, info, warning, error"),
            (("usage", "--by", "day", "--by", "model"), "--by stands there more than once"),
            (("version", "x" * 300), "…"),
        ):
            done = squidbot(tmp_path, *arguments)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (arguments, done)
            assert told in done.stderr, arguments

    @pytest.mark.parametrize(
        ("word", "told"),
        [
            ("statsu", "Did you mean `squidbot status`?"),
            ("inbx", "Did you mean `squidbot inbox`?"),
            ("search", "Did you mean `squidbot sessions search`? In a chat with the bot it is `!search`."),
            ("approvals", "In a chat with the bot it is `!approve`."),
            ("remind", "In a chat with the bot it is `!remind`."),
            ("--home", "--home stands behind the command, as in `squidbot status --home …`"),
            ("-V", "write `squidbot version`"),
            ("wibble", 'there is no command "wibble". `squidbot help` lists all.'),
        ],
    )
    def test_a_word_that_is_no_command_is_told_with_the_nearest(self, word, told):
        """Also the second word of a command, and what is a command in a chat."""
        assert told in no_such_command(word)

    @pytest.mark.parametrize(
        "word", ["restart", "restor", "restorde", "forgot", "forge", "migrat", "importt"]
    )
    def test_no_word_is_told_with_what_erases_or_replaces(self, word):
        told = no_such_command(word)
        assert "Did you mean" not in told
        assert ("systemctl --user restart squidbot" in told) is (word == "restart")

    def test_an_unknown_word_ends_with_one_line_and_help_is_a_word(self, tmp_path):
        """Exit code 2, as for any wrong usage."""
        done = squidbot(tmp_path, "statsu")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "squidbot status" in done.stderr
        assert squidbot(tmp_path, "help").stdout == squidbot(tmp_path, "--help").stdout
        said = squidbot(tmp_path, "help", "cron", "add").stdout
        assert "--every" in said
        assert said == squidbot(tmp_path, "cron", "add", "--help").stdout

    def test_a_broken_configuration_is_78_and_makes_no_folder(self, tmp_path):
        """The whole list of mistakes, on stderr, and nothing else happens."""
        root = tmp_path / "h"
        root.mkdir()
        (root / "squidbot.yaml").write_text("agents: {x: 1}\nllm: {y: 2}\n")
        done = squidbot(root, "run")
        assert done.returncode == 78
        assert "agents.x: unknown key" in done.stderr and "llm.y: unknown key" in done.stderr
        assert [path.name for path in root.iterdir()] == ["squidbot.yaml"]

    def test_a_missing_configuration_is_78(self, tmp_path):
        """With the place where it was looked for."""
        done = squidbot(tmp_path / "none", "run")
        assert done.returncode == 78
        assert "none/squidbot.yaml" in done.stderr
        assert not (tmp_path / "none").exists()

    def test_looking_at_a_home_that_is_not_there_makes_none(self, tmp_path):
        """Read-only commands leave no trace."""
        for command in (("status",), ("inbox", "list"), ("memory", "show")):
            done = squidbot(tmp_path / "none", *command)
            assert done.returncode == 1
            assert "there is nothing in" in done.stderr
        assert not (tmp_path / "none").exists()

    def test_a_home_that_cannot_be_used_is_74(self, tmp_path):
        """A file in the place of the folder, for example."""
        (tmp_path / "h").write_text("")
        (tmp_path / "c.yaml").write_text(CONFIG)
        done = squidbot(tmp_path / "h", "run", "--config", str(tmp_path / "c.yaml"))
        assert done.returncode == 74
        assert done.stderr.startswith("squidbot: ")

    def test_a_damaged_database_is_told_in_one_sentence(self, home):
        """No traceback; the file stays as it was."""
        open_home(home)
        (home / "gateway.db").write_bytes(b"garbage" * 1000)
        for arguments in (("status",), ("run",)):
            done = squidbot(home, *arguments)
            assert done.returncode == 74, done.stderr
            assert "Traceback" not in done.stderr
        assert (home / "gateway.db").read_bytes() == b"garbage" * 1000

    def test_a_reader_that_leaves_is_no_error(self, filled):
        """`squidbot sessions export … | head` ends quietly."""
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m gateway sessions export terminal/main | head -1"],
            env={**os.environ, "SQUIDBOT_HOME": str(filled)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert json.loads(done.stdout)["content"].startswith("text 0")
        assert done.stderr == ""

    def test_the_version_names_the_libraries(self, tmp_path):
        """What a bug report needs."""
        told = answer(tmp_path, "version")
        assert told["libraries"]["aiohttp"] and told["version"]


@pytest.mark.slow  # many processes, one after the other
@pytest.mark.parametrize(
    "words",
    [
        ["backup"],
        ["init", "--yes", "--home"],
        ["status", "--home"],
        ["inbox", "list", "--home"],
        ["check", "--home"],
    ],
)
def test_a_path_that_no_file_system_can_have(tmp_path, words):
    """One sentence, and the exit code of wrong usage."""
    done = squidbot(tmp_path, *words, "/" + "x" * 300)
    assert (done.returncode, done.stderr) == (2, f"squidbot: /{'x' * 59}…: File name too long\n")


class TestWithoutDaemon:
    def test_messages(self, filled):
        """Listed, shown with what was sent, tried again, given up."""
        [row] = answer(filled, "inbox", "list")["rows"]
        assert (row["state"], row["error"]) == ("dead", "the model refused")
        number = str(row["id"])
        shown = squidbot(filled, "inbox", "show", number).stdout
        assert "the model refused" in shown and "sorry" in shown
        assert "\x1b" not in shown
        assert "will be tried when the daemon runs" in squidbot(filled, "inbox", "retry", number).stdout
        assert squidbot(filled, "inbox", "retry", number).returncode == 1
        assert answer(filled, "inbox", "list", "--state", "ready")["rows"][0]["id"] == row["id"]
        assert squidbot(filled, "inbox", "drop", number).returncode == 0
        assert answer(filled, "inbox", "list")["rows"] == []

    def test_a_session_is_exported_whole_into_a_file_of_the_owner_alone(self, filled, tmp_path):
        """Also half surrogate pairs; an existing file is not overwritten."""
        out = tmp_path / "export.jsonl"
        assert (
            "450 messages"
            in squidbot(filled, "sessions", "export", "terminal/main", "--output", str(out)).stdout
        )
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert [line["content"] for line in lines] == [f"text {n} \ud800" for n in range(450)]
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert squidbot(filled, "sessions", "export", "terminal/main", "--output", str(out)).returncode == 73
        none = tmp_path / "none.jsonl"
        assert squidbot(filled, "sessions", "export", "terminal/none", "--output", str(none)).returncode == 1
        assert not none.exists()

    def test_a_reset_wants_a_yes(self, filled):
        """Without a person to ask, nothing happens."""
        assert squidbot(filled, "sessions", "reset", "terminal/main").returncode == 1
        assert answer(filled, "sessions", "list")["sessions"][0]["unconsolidated"] == 450
        nobody = squidbot(filled, "sessions", "reset", "terminal/nobody")
        assert (nobody.returncode, nobody.stdout) == (1, ""), "nothing to ask about"
        assert "there is no session terminal/nobody" in nobody.stderr
        assert "[y/N]" not in nobody.stderr
        assert squidbot(filled, "sessions", "reset", "terminal/main", "--yes").returncode == 0
        [after] = answer(filled, "sessions", "list")["sessions"]
        assert (after["unconsolidated"], after["last_at"]) == (0, EPOCH.isoformat())

    def test_memory(self, filled):
        """Shown, with its versions as differences, undone."""
        assert squidbot(filled, "memory", "show").stdout == "likes coffee\nlives here\n"
        assert "  - likes tea\n  + likes coffee\n" in squidbot(filled, "memory", "history").stdout
        assert squidbot(filled, "memory", "undo").returncode == 0
        assert squidbot(filled, "memory", "show").stdout == "likes tea\nlives here\n"
        assert squidbot(filled, "memory", "show", "nobody").returncode == 2
        assert squidbot(filled, "memory", "list").stdout == "owner\n"

    def test_memory_is_written(self, filled):
        """A new version; not over a newer one; that an empty input has emptied it is said, and what undoes it."""
        [*_, newest] = answer(filled, "memory", "history")["versions"]
        base = str(newest["version"])
        assert (
            "written" in squidbot(filled, "memory", "write", "--version", base, stdin="likes cake\n").stdout
        )
        assert squidbot(filled, "memory", "show").stdout == "likes cake\n"
        late = squidbot(filled, "memory", "write", "--version", base, stdin="likes pie\n")
        assert (late.returncode, "nothing was written" in late.stderr) == (1, True)
        assert "`squidbot memory undo owner`" in squidbot(filled, "memory", "write").stdout
        assert squidbot(filled, "memory", "show").stdout == "this memory is empty\n"
        assert squidbot(filled, "memory", "undo").returncode == 0
        assert squidbot(filled, "memory", "show").stdout == "likes cake\n"

    def test_trust_of_a_file(self, filled):
        """What it holds now is named by its hash; a file that is not there, or is out of reach, is not trusted."""
        (filled / "workspace").mkdir(exist_ok=True)
        (filled / "workspace" / "trip.md").write_text("pack")
        said = squidbot(filled, "trust", "file", "trip.md").stdout
        assert sha256(b"pack").hexdigest() in said
        assert (filled / "state" / "files" / "labels.jsonl").exists()
        assert squidbot(filled, "trust", "file", "nothing.md").returncode == 1
        assert squidbot(filled, "trust", "file", "../squidbot.yaml").returncode == 1

    def test_a_broken_configuration_does_not_hide_the_inbox_but_the_place_of_the_memory(self, filled):
        """Where the workspace is, only the configuration knows."""
        (filled / "squidbot.yaml").write_text("agents: {x: 1}")
        assert squidbot(filled, "inbox", "list").returncode == 0
        assert squidbot(filled, "memory", "show").returncode == 78

    def test_the_lock_is_held_only_for_the_moment(self, filled):
        """A daemon can start right afterwards."""
        assert squidbot(filled, "status").returncode == 0
        with hold_home(Home(filled)):
            pass


@contextmanager
def inherited(number, how):
    """What a process that begins meanwhile does with a signal, however these tests were started."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.slow  # many processes, one after the other
class TestWithDaemon:
    def test_the_same_questions_get_the_same_answers(self, filled):
        """Through the socket as on the files."""
        questions = [
            ("inbox", "list"),
            ("sessions", "list"),
            ("sessions", "show", "terminal/main", "--limit", "3"),
            ("memory", "history"),
        ]
        before = [answer(filled, *question) for question in questions]
        with daemon(filled) as process:
            assert [answer(filled, *question) for question in questions] == before
            status = answer(filled, "status")
            assert (status["running"], status["pid"]) == (True, process.pid)
            assert "running" in squidbot(filled, "status").stdout
            assert len(squidbot(filled, "sessions", "export", "terminal/main").stdout.splitlines()) == 450

    def test_a_second_daemon_is_refused_with_78_and_the_number_of_the_first(self, home):
        """And the first one does not notice."""
        with daemon(home) as process:
            done = squidbot(home, "run")
            assert done.returncode == 78
            assert f"process {process.pid}" in done.stderr
            assert answer(home, "status")["running"]

    def test_closed_standard_streams_are_no_place_for_its_files(self, home):
        """Started with all three closed, it runs, and what would be written there goes nowhere."""
        (home / "squidbot.yaml").write_text(CONFIG)
        run = [
            "sh",
            "-c",
            'exec "$@" <&- >&- 2>&-',
            "sh",
            sys.executable,
            "-m",
            "gateway",
            "run",
            "--home",
            home,
        ]
        with subprocess.Popen(run) as shell:
            try:
                while not Home(home).control_socket.exists():
                    assert shell.poll() is None
                    time.sleep(0.02)
                pid = answer(home, "status")["pid"]
                streams = {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)}
                os.kill(pid, signal.SIGTERM)
                assert shell.wait(120) == 0
            finally:
                shell.kill()
        assert streams == {os.devnull}

    def test_a_signal_ends_it_with_0_and_frees_the_home(self, home):
        """The socket is gone, and the commands work on the files again."""
        with daemon(home) as process:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert not Home(home).control_socket.exists()
            assert answer(home, "status")["running"] is False

    def test_a_closed_terminal_ends_it(self, home):
        """SIGHUP comes from there, and is no crash."""
        (home / "squidbot.yaml").write_text(CONFIG)
        command = ["-m", "gateway", "run", "--home", str(home)]
        with inherited(signal.SIGHUP, signal.SIG_DFL):
            pid, terminal = pty.fork()
            if pid == 0:
                os.execv(sys.executable, [sys.executable, *command])
        while not Home(home).control_socket.exists():
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
            time.sleep(0.02)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_sighup_makes_it_begin_again_with_the_new_configuration(self, home):
        """The same process, so that a service manager keeps it; a configuration that is wrong changes nothing."""

        def started():
            return (home / "out.txt").read_text().count("gateway.started")

        def wait_for(true):
            while not true():
                assert process.poll() is None, (home / "out.txt").read_text()
                time.sleep(0.02)

        with inherited(signal.SIGHUP, signal.SIG_DFL), daemon(home) as process:
            wait_for(lambda: started() == 1)
            good = (home / "squidbot.yaml").read_text()
            (home / "squidbot.yaml").write_text(good + "nonsense: 1\n")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "settings.refused" in (home / "out.txt").read_text())
            port = free_port()
            (home / "squidbot.yaml").write_text(
                f"{CONFIG}gateway: {{http: {{listen: '127.0.0.1:{port}'}}}}\n"
            )
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: started() == 2)
            assert answer(home, "status")["pid"] == process.pid
            assert f"127.0.0.1:{port}" in (home / "out.txt").read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

    def test_sighup_in_the_first_second_ends_nothing(self, home):
        """It waits until somebody listens, also between the two that do; then it begins again, as later."""
        hangup = 1 << (signal.SIGHUP - 1)

        def is_held(pid):
            status = Path(f"/proc/{pid}/status").read_text()
            return int(status.partition("SigBlk:")[2].split()[0], 16) & hangup

        with inherited(signal.SIGHUP, signal.SIG_DFL), daemon(home, until_up=False) as process:
            while not is_held(process.pid):
                assert process.poll() is None
                assert "gateway.started" not in (home / "out.txt").read_text()
            process.send_signal(signal.SIGHUP)
            while "gateway.started" not in (home / "out.txt").read_text():
                assert process.poll() is None, (home / "out.txt").read_text()
                time.sleep(0.02)
            assert not is_held(process.pid)
            assert answer(home, "status")["pid"] == process.pid

    def test_under_nohup_it_outlives_its_terminal(self, home):
        """Whoever has it ignore SIGHUP is obeyed."""
        with inherited(signal.SIGHUP, signal.SIG_IGN), daemon(home) as process:
            process.send_signal(signal.SIGHUP)
            assert answer(home, "status")["running"]

    def test_after_sigkill_the_commands_work_on_the_files(self, home):
        """The socket that stays behind is not believed."""
        with daemon(home) as process:
            process.kill()
            process.wait()
            assert Home(home).control_socket.exists()
            assert answer(home, "status")["running"] is False

    def test_check_uses_the_running_daemon(self, home):
        """No second login."""
        with daemon(home) as process:
            report = answer(home, "check")
            [daemons_own] = [one for one in report["checks"] if one["name"] == "daemon"]
            assert daemons_own["state"] == "ok"
            assert str(process.pid) in daemons_own["text"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.25, "0.2 s"), (59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90_000, "1 d 1 h")]
)  # fmt: skip
def test_spans_of_time_are_told_in_two_units(seconds, text):
    """Nobody wants to divide by 3600."""
    assert duration(seconds) == text


def test_files_of_commands_are_named_behind_the_changes():
    """Also where there are no changes; a name cannot look like two lines."""
    nothing = {"path": None, "changes": [], "made_by_commands": []}
    assert render.file_changes(nothing) == "no file was changed"
    told = render.file_changes({**nothing, "made_by_commands": ["work/a", "work/b\nc"]})
    assert told.startswith("made or changed by commands, without earlier versions: work/a, work/b")
    assert "\n" not in told


def test_a_table_cannot_be_broken_by_its_contents():
    """Line breaks and control characters stay inside of their cell."""
    told = render.table(("A", "B"), [("x\ny", "\x1b[2J"), ("long" * 30, "z")])
    assert len(told.splitlines()) == 3
    assert "\x1b" not in told
