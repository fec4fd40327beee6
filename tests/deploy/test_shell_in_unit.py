"""The sandbox of the shell under a real systemd, with what our unit file takes away from the daemon."""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.images import ROOT
from tests.deploy.machine import Machine, bare, machine_missing, running_machine

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

LIBRARIES = ("anyio", "structlog", "sniffio", "idna", "typing_extensions.py")
TRY = "/opt/try/tests/unit/agent_core/sandbox/standing.py"
ESCAPING = "/opt/try/tests/unit/agent_core/sandbox/escaping.py"
LEFT_OUT = (
    "ExecStart",
    "Type",
    "NotifyAccess",
    "Restart",
    "Watchdog",
    "LoadCredential",
    "KillMode",
    "Timeout",
)


def copy_what_is_tried(folder: Path) -> None:
    """The sandbox of the shell and what it imports, without the rest of squidbot."""
    (folder / "lib").mkdir(parents=True)
    for part in ("agent_core", "tests/unit/agent_core/children"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LIBRARIES:
        found = Path(sysconfig.get_path("purelib")) / name
        if found.is_dir():
            shutil.copytree(found, folder / "lib" / name)
        elif found.exists():
            shutil.copy(found, folder / "lib" / name)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian 13 with the sandbox of the shell, and without the rest of squidbot."""
    missing = machine_missing()
    if missing:
        pytest.skip(f"no machine can be booted: {missing}")
    root = tmp_path_factory.mktemp("shell-machine") / "root"
    bare(root)
    copy_what_is_tried(root / "opt/try")
    with running_machine(root, "squidbot-shell") as one:
        yield one


def tried(
    machine: Machine, backend: str, *, options: tuple[str, ...], home: str, commands: tuple[str, ...] = ()
) -> dict[str, object]:
    """What comes of the trial in a service with these options, and of the commands where it holds."""
    done = machine.run(
        "systemd-run", "--quiet", "--pipe", "--wait", "--collect",
        *(part for option in options for part in ("-p", option)),
        "/usr/bin/python3", "-W", "ignore", TRY, "/opt/try/lib", home, "nothing", backend, *commands,
        check=False, limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def install_shell_unit(machine: Machine, *, without: tuple[str, ...] = ()) -> None:
    """The units of the shell as they are shipped, but for the place of the program, and started."""
    machine.run("systemctl", "stop", "squidbot-shell.socket", check=False)
    for name in ("squidbot-shell.socket", "squidbot-shell@.service"):
        text = (ROOT / "deploy/systemd" / name).read_text()
        command = """ExecStart=/usr/bin/python3 -I -S -c "import sys; sys.path.append('/opt/try'); """
        text = text.replace('ExecStart=/opt/squidbot/bin/python -I -c "', command)
        kept = [line for line in text.splitlines() if not line.startswith(without or "\0")]
        (machine.root / "etc/systemd/system" / name).write_text("\n".join(kept) + "\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "squidbot-shell.socket")


def attacked(machine: Machine, **options: object) -> dict[str, object]:
    """What comes of the trial and of the attacks, with a unit of its own for each command."""
    given = json.dumps({"libraries": ["/opt/try/lib"], "home": "/var/lib/squidbot", **options})
    done = machine.run(
        "systemd-run", "--quiet", "--pipe", "--wait", "--collect",
        *(part for option in ("User=squidbot", *our_unit()) for part in ("-p", option)),
        "/usr/bin/python3", "-W", "ignore", ESCAPING, given,
        check=False, limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *log, last = done.stdout.splitlines()
    found: dict[str, object] = json.loads(last)
    return found | {"log": log}


def check_attacks(found: dict[str, object], *, connects: bool = False) -> None:
    """T8 in a sandbox whose runner is elsewhere: nothing got out, and nothing was left."""
    assert found["held"], found
    escapes = found["escapes"]
    assert isinstance(escapes, dict)
    assert len(escapes) >= 60, found["ended"]
    # There the folder that is called as squidbot's own is another one, and empty.
    done = {name for name, result in escapes.items() if not result.startswith("refused")}
    assert done <= {"open_a_folder_to_all", *(["listen_for_others"] if connects else [])}  # there are none
    assert found["outside"] == ["something", "0o700"]
    assert str(found["plain"]).splitlines()[:2] == ["42", str(found["user"])]
    assert found["kept"] == ["kept\n", found["user"]]
    assert found["left"] == [0, 1, ""]
    slow, bomb, memory = found["limits"]  # type: ignore[misc]
    assert (slow, memory) == ("time", "memory")
    assert bomb in ("time", "processes")
    assert found["cancelled"] == [True, False]
    if connects:
        assert "with a proxy" in str(found["told"])
        assert found["page"] == "GET http://data.example/ HTTP/1.1\n"


@pytest.mark.parametrize("connects", [False, True], ids=["no network", "listed hosts"])
def test_each_command_in_a_unit_of_its_own(machine: Machine, connects: bool) -> None:
    """The daemon's unit as it is shipped, with the socket beside it: the escapes and the limits, by ``auto``."""
    install_shell_unit(machine)
    found = attacked(machine, backend="auto", connects=connects)
    assert str(found["told"]).startswith("a unit for each command, Landlock"), found["log"]
    check_attacks(found, connects=connects)
    left = machine.run("systemctl", "list-units", "--no-legend", "--all", "squidbot-shell@*").stdout
    assert left.strip() == ""
    # Its weight is one among the services, of which the daemon is one.
    assert machine.show("squidbot-shell@any.service", "Slice") == "system.slice"
    assert machine.show("squidbot-shell@any.service", "CPUWeight") == "20"


@pytest.mark.parametrize("connects", [False, True], ids=["no network", "listed hosts"])
def test_a_unit_that_shares_the_network_is_refused(machine: Machine, connects: bool) -> None:
    """The control: a unit with the machine's own network is seen through, and not used."""
    install_shell_unit(machine, without=("PrivateNetwork=",))
    found = attacked(machine, backend="unit", connects=connects)
    assert found["held"] is False
    assert "no network of its own" in str(found["told"])


def our_unit() -> tuple[str, ...]:
    """What our unit file says of the service's surroundings."""
    text = (ROOT / "deploy/systemd/squidbot.service").read_text()
    service = text.partition("[Service]")[2].partition("[Install]")[0]
    service = service.replace("%N", "squidbot")  # which is known in unit files alone
    lines = [line for line in service.splitlines() if "=" in line and not line.startswith("#")]
    return tuple(line for line in lines if not line.startswith(LEFT_OUT))


@pytest.mark.parametrize("backend", ["landlock", "auto"])
def test_it_holds_in_our_unit(machine: Machine, backend: str) -> None:
    """T7: the daemon's unit as it is shipped; Landlock is proved there, and commands run as the service's user."""
    options = our_unit()
    assert "RestrictNamespaces=yes" in options
    assert "DynamicUser=yes" in options
    found = tried(machine, backend, options=("User=squidbot", *options), home=f"/var/lib/squidbot/{backend}")
    assert found["held"], found
    assert str(found["told"]).startswith("Landlock")
    answer, user = str(found["said"]).split()
    assert answer == "42"
    assert int(user) >= 61184  # the range of dynamic users


@pytest.mark.parametrize("refused", ["", "SystemCallFilter=~setpriority"], ids=["as shipped", "control"])
def test_a_command_is_behind_the_daemon_in_our_unit(machine: Machine, refused: str) -> None:
    """The control is the unit without the line for that."""
    options = ("User=squidbot", *our_unit(), *([refused] if refused else []))
    home = f"/var/lib/squidbot/nice-{bool(refused)}"
    found = tried(machine, "landlock", options=options, home=home, commands=('test "$(nice)" -eq 19',))
    assert found["held"], found
    assert found["runs"] == [[1 if refused else 0, ""]]


def test_bubblewrap_alone_is_refused_there(machine: Machine) -> None:
    """It is not installed on this machine, and our unit lets no namespace be made: no shell, and the reason."""
    found = tried(
        machine, "bubblewrap", options=("User=squidbot", *our_unit()), home="/var/lib/squidbot/wrapped"
    )
    assert found["held"] is False
    assert "bubblewrap" in str(found["told"])


def test_without_the_line_for_landlock_it_is_refused(machine: Machine) -> None:
    """The control: the same unit with these calls refused has no shell, and says why."""
    refused = "SystemCallFilter=~landlock_create_ruleset landlock_add_rule landlock_restrict_self"
    found = tried(
        machine, "auto", options=("User=squidbot", *our_unit(), refused), home="/var/lib/squidbot/refused"
    )
    assert found["held"] is False
    assert "no Landlock" in str(found["told"])


def test_it_holds_for_root(machine: Machine) -> None:
    """Plain root without any unit: bound by a control group of its own, or refused with the reason."""
    found = tried(machine, "auto", options=(), home="/root/home")
    assert found["held"] or "control group" in str(found["told"]), found
