"""The systemd unit on a real systemd: what it allows, what it forbids, and how it behaves in trouble."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.engine import Engine
from tests.deploy.machine import Machine, machine_missing, running_machine, unpack

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

UNIT = "squidbot.service"
CONFIG = """\
llm:
  providers: {x: {api_base: "http://127.0.0.1:1/v1", api_key: "${secret:model-key}"}}
  models: {y: {provider: x, model: openai/z}}
  pools: {main: [y]}
"""
DONE = "done"
HOME = "/var/lib/private/squidbot"


@pytest.fixture(scope="module")
def machine(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian with squidbot under /opt/squidbot and a configuration that only root can read."""
    missing = machine_missing()
    if missing:
        pytest.skip(f"no machine can be booted: {missing}")
    root = tmp_path_factory.mktemp("machine") / "root"
    unpack(engine, image, root)
    etc = root / "etc" / "squidbot"
    (etc / "secrets").mkdir(parents=True, mode=0o700)
    for path, text in ((etc / "squidbot.yaml", CONFIG), (etc / "secrets" / "model-key", "k3y\n")):
        path.write_text(text)
        path.chmod(0o600)
    # Quicker than in earnest, so that a test need not wait for minutes.
    drop_in = root / "etc/systemd/system/squidbot.service.d"
    drop_in.mkdir()
    (drop_in / "quick.conf").write_text("[Service]\nWatchdogSec=6\nRestartSec=200ms\n")
    with running_machine(root) as one:
        yield one


@pytest.fixture
def service(machine: Machine) -> Iterator[Machine]:
    """A machine on which the service has just been started."""
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    machine.run("systemctl", "restart", UNIT, check=False)
    machine.until(UNIT, "ActiveState", "active")
    yield machine
    machine.run("systemctl", "stop", UNIT, check=False)


def _restarts(machine: Machine) -> int:
    return int(machine.show(UNIT, "NRestarts"))


def _marked(code: str) -> str:
    """The same code, followed by a mark that stands in no line of its source."""
    return f"{code}; print('do' + 'ne')"


def _probe(machine: Machine, code: str) -> str:
    """Run Python inside the service's own sandbox, with its own user; says what came of it."""
    shown = machine.run("systemctl", "cat", UNIT).stdout
    keep = ("Protect", "Private", "Restrict", "Memory", "SystemCall", "Capab", "NoNew", "Lock", "Remove", "Dynamic",
            "State", "UMask", "Device", "ProcSub", "LoadCred", "TasksMax", "LimitNOFILE")  # fmt: skip
    # A unit that is made for one command has another name than the one whose directories it gets.
    name = UNIT.removesuffix(".service")
    lines = [line.replace("%N", name) for line in shown.splitlines() if line.startswith(keep)]
    options = [part for line in lines for part in ("-p", line)]
    done = machine.run(
        "systemd-run", "--quiet", "--pipe", "--wait", "-p", "User=squidbot", *options,
        "/opt/squidbot/bin/python", "-c", _marked(code), check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr).strip()


def test_it_becomes_active_when_it_says_so(service: Machine) -> None:
    """Type=notify: active after READY=1, with a status line that says how it is."""
    assert service.show(UNIT, "ActiveState") == "active"
    assert service.show(UNIT, "StatusText")
    assert service.show(UNIT, "NotifyAccess") == "main"


def test_secrets_and_configuration_are_root_s(service: Machine) -> None:
    """The service reads its configuration as a credential; the files stay unreadable for its user."""
    pid = service.main_pid(UNIT)
    status = dict(
        line.split(":\t", 1) for line in service.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    )
    uid = status["Uid"].split()[0]
    assert int(uid) >= 61184  # DynamicUser's range
    tried = service.run(
        "setpriv", "--reuid", uid, "--clear-groups", "cat", "/etc/squidbot/squidbot.yaml", check=False
    )
    assert "Permission denied" in tried.stderr
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


def test_one_command_shows_how_it_is(service: Machine) -> None:
    """`squidbot status` works for root while the service runs under a user that has no name."""
    told = service.run("env", f"SQUIDBOT_HOME={HOME}", "squidbot", "status", check=False)
    assert told.returncode in (0, 1), told.stderr
    assert "local chat" in told.stdout


def test_root_can_check_it_and_talk_to_it(service: Machine) -> None:
    """`squidbot check` finds the home in order although it is another user's, and `chat` goes through the daemon."""
    config = "/etc/squidbot/squidbot.yaml"
    told = service.run("squidbot", "check", "--home", HOME, "--config", config, "--json", check=False).stdout
    found = [one for one in json.loads(told)["checks"] if one["name"] == "home"]
    assert found
    assert {one["state"] for one in found} <= {"ok", "warn"}, found
    line = f"printf '!help\\n/quit\\n' | squidbot chat --home {HOME}"
    assert "!status" in service.run("sh", "-c", line).stdout


def test_a_start_has_nothing_to_complain_about(service: Machine) -> None:
    """No warning in the journal: not about the credentials either, whose mode is the service manager's affair."""
    pid = service.main_pid(UNIT)
    told = service.run("journalctl", f"_PID={pid}", "--no-pager", "-o", "cat").stdout
    assert '"gateway.started"' in told
    assert '"level":"warning"' not in told


def test_instances_of_the_template_are_homes_of_their_own(machine: Machine) -> None:
    """squidbot, squidbot@ann and squidbot@bob run beside each other; each sees its own configuration and home alone."""
    etc = machine.root / "etc"
    template = machine.root / "etc/systemd/system/squidbot@.service"
    shutil.copy(machine.root / "etc/systemd/system" / UNIT, template)
    for name in ("ann", "bob"):
        (etc / f"squidbot@{name}" / "secrets").mkdir(parents=True)
        shutil.copy(etc / "squidbot/squidbot.yaml", etc / f"squidbot@{name}")
        (etc / f"squidbot@{name}" / "secrets/model-key").write_text(f"key-of-{name}\n")
    machine.run("systemctl", "daemon-reload")
    seen = {}
    try:
        for name in ("ann", "bob"):
            unit = f"squidbot@{name}.service"
            machine.run("systemctl", "start", unit)
            machine.until(unit, "ActiveState", "active")
            pid = machine.main_pid(unit)
            keys = f"cat /proc/{pid}/root/run/credentials/{unit}/*model-key"
            seen[name] = machine.run("sh", "-c", keys).stdout.strip()
            home = f"/var/lib/private/squidbot@{name}"
            assert machine.run("squidbot", "status", "--home", home, check=False).returncode in (0, 1)
        assert seen == {"ann": "key-of-ann", "bob": "key-of-bob"}
        machine.run("systemctl", "restart", UNIT)
        machine.until(UNIT, "ActiveState", "active")
        alone = f"cat /proc/{machine.main_pid(UNIT)}/root/run/credentials/{UNIT}/*model-key"
        assert machine.run("sh", "-c", alone).stdout.strip() == "k3y"
    finally:
        machine.run("systemctl", "stop", UNIT, "squidbot@ann", "squidbot@bob", check=False)
        for name in ("ann", "bob"):
            shutil.rmtree(etc / f"squidbot@{name}")
        template.unlink()
        machine.run("systemctl", "daemon-reload")


FORBIDDEN = {
    "a page that is writable and executable": "import mmap; mmap.mmap(-1, 4096, prot=7)",
    "a file with the set-user-id bit":
        "import os; f='/var/lib/squidbot/s'; open(f, 'w').close(); os.chmod(f, 0o4755)",
    "a packet socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a netlink socket": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a namespace": "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); "
        "assert c.unshare(0x04000000) == 0, os.strerror(ctypes.get_errno())",
    "writing to /etc": "open('/etc/x', 'w').close()",
    "writing to its own program": "open('/opt/squidbot/x', 'w').close()",
    "reading root's home": "import os; os.listdir('/root')",
    "seeing other processes": "open('/proc/1/cmdline').close()",
    "the machine's memory figures": "open('/proc/meminfo').close()",
    "setting the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())",
}  # fmt: skip


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_is_forbidden_does_not_work(service: Machine, what: str) -> None:
    """Each line of the sandbox has an effect."""
    said = _probe(service, FORBIDDEN[what])
    assert not said.endswith(DONE), what
    assert "Error" in said, said


@pytest.mark.parametrize("what", sorted(FORBIDDEN.keys() - {"setting the clock"}))
def test_without_the_sandbox_it_would_work(service: Machine, what: str) -> None:
    """The same code succeeds for root outside of it: it is the sandbox that forbids, not a slip in the code."""
    done = service.run("/opt/squidbot/bin/python", "-c", _marked(FORBIDDEN[what]), check=False)
    assert done.stdout.strip().endswith(DONE), done.stderr


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("its state", "open('/var/lib/squidbot/ok','w').write('x')"),
        ("/tmp of its own", "open('/tmp/ok','w').write('x')"),
        ("the network", "import socket; socket.create_server(('127.0.0.1', 0))"),
        ("callbacks from C", "import ctypes; ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)()"),
        ("a database in WAL mode",
         "import sqlite3; d = sqlite3.connect('/var/lib/squidbot/t.db'); assert d.execute('pragma journal_mode=wal').fetchone() == ('wal',); d.execute('create table if not exists t (n)')"),
        ("the crypto library", "import vodozemac; vodozemac.Account()"),
    ],
)  # fmt: skip
def test_what_it_needs_works(service: Machine, what: str, code: str) -> None:
    """The sandbox does not take what the daemon lives on."""
    assert _probe(service, code) == DONE, what


def test_killed_it_comes_back(service: Machine) -> None:
    """SIGKILL: a new process within seconds, one restart counted."""
    before, pid = _restarts(service), service.main_pid(UNIT)
    service.run("kill", "-KILL", str(pid))
    service.until(UNIT, "NRestarts", str(before + 1))
    service.until(UNIT, "ActiveState", "active")
    assert service.main_pid(UNIT) != pid


def test_a_process_that_stands_still_is_ended(service: Machine) -> None:
    """The watchdog: no sign of life within the limit, so SIGABRT and a restart."""
    before = _restarts(service)
    service.run("kill", "-STOP", str(service.main_pid(UNIT)))
    service.until(UNIT, "NRestarts", str(before + 1), limit_s=40)
    service.until(UNIT, "ActiveState", "active")
    assert "watchdog" in service.run("journalctl", "-u", UNIT, "-n", "60", "--no-pager").stdout.lower()


def test_turns_that_stand_still_end_it(machine: Machine) -> None:
    """
    The watchdog again, while the loop turns: a turn hangs, so no signs of life are given, SIGABRT, a restart; and
    the next process answers what hung. Before that the same process lives for longer than the watchdog waits.
    """
    shutil.copy(Path(__file__).with_name("stuck_daemon.py"), machine.root / "opt/stuck_daemon.py")
    state = machine.root / "var/lib/private/squidbot"
    drop_in = machine.root / "etc/systemd/system/squidbot.service.d/stuck.conf"
    drop_in.write_text(
        "[Service]\nExecStart=\nExecStart=/opt/squidbot/bin/python /opt/stuck_daemon.py /var/lib/squidbot\n"
        "WatchdogSec=10\n"
    )
    talk = "printf 'hello there\\n/quit\\n' | timeout 20 squidbot chat"

    def rows() -> list[str]:
        told = machine.run("env", f"SQUIDBOT_HOME={HOME}", "squidbot", "inbox", "list", "--json", check=False)
        return [row["state"] for row in json.loads(told.stdout)["rows"]] if told.stdout else []

    try:
        machine.run("systemctl", "stop", UNIT, check=False)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "reset-failed", UNIT, check=False)
        machine.run("systemctl", "start", UNIT)
        machine.until(UNIT, "ActiveState", "active")
        before, pid, known = _restarts(machine), machine.main_pid(UNIT), len(rows())
        assert "hello" in machine.run("env", f"SQUIDBOT_HOME={HOME}", "sh", "-c", talk).stdout.lower()
        time.sleep(12)
        assert (machine.main_pid(UNIT), _restarts(machine)) == (pid, before)

        (state / "hang").touch()
        machine.run("env", f"SQUIDBOT_HOME={HOME}", "sh", "-c", talk, check=False)
        machine.until(UNIT, "NRestarts", str(before + 1), limit_s=60)
        machine.until(UNIT, "ActiveState", "active")
        journal = machine.run("journalctl", "-u", UNIT, "-n", "200", "--no-pager").stdout
        assert "a turn has been running" in journal
        assert "watchdog" in journal.lower()
        end = time.monotonic() + 60
        while len(seen := rows()) != known + 2 or not set(seen) <= {"answered", "settled"}:
            assert time.monotonic() < end, seen
            time.sleep(0.5)
    finally:
        machine.run("systemctl", "stop", UNIT, check=False)
        drop_in.unlink()
        (state / "hang").unlink(missing_ok=True)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "reset-failed", UNIT, check=False)


def test_a_storm_of_failures_ends(service: Machine) -> None:
    """After five failures it stays down and says so, instead of failing for ever."""
    end = time.monotonic() + 120
    while (state := service.show(UNIT, "ActiveState")) != "failed":
        assert time.monotonic() < end, state
        if state == "active":
            service.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UNIT, check=False)
        time.sleep(0.2)
    assert "repeated too quickly" in service.run("journalctl", "-u", UNIT, "-n", "40", "--no-pager").stdout


def test_a_wrong_configuration_is_not_tried_again(machine: Machine) -> None:
    """Exit 78 is final: failed, no restart, and the journal names the key and the line."""
    config = machine.root / "etc/squidbot/squidbot.yaml"
    machine.run("systemctl", "reset-failed", UNIT, check=False)
    config.write_text("chanels: {}\n")
    try:
        machine.run("systemctl", "start", UNIT, check=False)
        machine.until(UNIT, "ActiveState", "failed")
        time.sleep(1.5)
        assert machine.show(UNIT, "ActiveState") == "failed"
        assert machine.show(UNIT, "ExecMainStatus") == "78"
        assert "chanels" in machine.run("journalctl", "-u", UNIT, "-n", "20", "--no-pager").stdout
    finally:
        config.write_text(CONFIG)


def test_it_stops_in_order(service: Machine) -> None:
    """`systemctl stop` drains: success, at once when idle."""
    service.run("systemctl", "stop", UNIT)
    assert service.show(UNIT, "Result") == "success"
    assert service.show(UNIT, "ExecMainStatus") == "0"


def test_what_is_in_hand_is_finished_first(machine: Machine) -> None:
    """A model that is still thinking when the service is stopped: its answer is waited for, once, and the stop succeeds."""
    config = machine.root / "etc/squidbot/squidbot.yaml"
    config.write_text("channels: {}\n")  # the model that is built in
    ask = f"SQUIDBOT_HOME={HOME} squidbot"
    try:
        machine.run("systemctl", "restart", UNIT)
        talk = f"printf '!slow 4\\n/quit\\n' | {ask} chat >/dev/null 2>&1"
        machine.run(
            "systemd-run",
            "--quiet",
            "--unit=talk",
            "--setenv=PATH=/opt/squidbot/bin:/usr/bin:/bin",
            "sh",
            "-c",
            talk,
        )
        end = time.monotonic() + 30
        while not json.loads(machine.run("sh", "-c", f"{ask} status --json").stdout)["work"]["turns_running"]:
            assert time.monotonic() < end
            time.sleep(0.1)
        machine.run("systemctl", "stop", UNIT)
        assert machine.show(UNIT, "Result") == "success"
        assert machine.show(UNIT, "ExecMainStatus") == "0"
        [row] = [row for row in _rows(machine) if row["text"] == "!slow 4"]
        assert row["state"] in ("answered", "settled"), row
        assert row["attempts"] == 1
    finally:
        config.write_text(CONFIG)


def _rows(machine: Machine) -> list[dict[str, Any]]:
    """What was accepted."""
    told = machine.run("env", f"SQUIDBOT_HOME={HOME}", "squidbot", "inbox", "list", "--json").stdout
    found: list[dict[str, Any]] = json.loads(told)["rows"]
    return found


def test_nothing_is_wrong_with_the_unit(machine: Machine) -> None:
    """systemd has no complaint about any line, and rates its exposure 1.5 or lower."""
    told = subprocess.run(
        ["chroot", str(machine.root), "systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.stderr == ""
    machine.run(
        "systemd-analyze", "security", "--offline=true", "--threshold=15", f"/etc/systemd/system/{UNIT}"
    )
    wrong = machine.root / "etc/systemd/system/wrong.service"
    wrong.write_text("[Service]\nExecStart=/bin/true\nProtectHom=yes\n")
    told = subprocess.run(
        ["chroot", str(machine.root), "systemd-analyze", "verify", "/etc/systemd/system/wrong.service"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wrong.unlink()
    assert "ProtectHom" in told.stderr
