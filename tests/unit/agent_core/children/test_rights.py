"""Limits, folders and environment of a run, without a kernel."""

from __future__ import annotations

import resource
from pathlib import PurePosixPath as Path

from agent_core.children.proof import ATTEMPTS, verdict
from agent_core.children.rights import (
    Ceilings,
    environment_for,
    folder_problem,
    rights_of_version,
    rlimits_of,
    rules_for,
)


def test_nothing_of_the_daemon_but_language_and_time_zone_reaches_a_command():
    daemon = {
        "SQUIDBOT_HOME": "/h",
        "OPENAI_API_KEY": "k",
        "CREDENTIALS_DIRECTORY": "/c",
        "TZ": "Europe/Paris",
    }
    found = environment_for(daemon, {"GREETING": "hi"}, home="/w", private="/p")
    assert found["TZ"] == "Europe/Paris"
    assert found["GREETING"] == "hi"
    own = {"PATH", "LANG", "TERM", "PAGER", "TZ", "HOME", "TMPDIR", "GIT_CONFIG_NOSYSTEM"}
    assert set(found) == own | {"GREETING"}


def test_a_folder_that_gives_away_the_home_is_refused():
    home, workspace = Path("/home/a/.squidbot"), Path("/home/a/.squidbot/workspace")
    assert folder_problem(workspace, home, workspace) == ""
    assert folder_problem(workspace / "project", home, workspace) == ""
    assert folder_problem(Path("/srv/data"), home, workspace) == ""
    for path in ("/", "/home/a", "/home/a/.squidbot", "/home/a/.squidbot/state"):
        assert folder_problem(Path(path), home, workspace) != ""


def test_each_version_is_asked_for_what_it_knows():
    """Landlock refuses a ruleset with a right that it does not know."""
    assert [rights_of_version(version).files.bit_length() for version in (1, 2, 3, 4, 5, 6, 9)] == [
        *(13, 14, 15, 15, 16, 16, 16)
    ]
    assert (rights_of_version(3).network, rights_of_version(4).network) == (0, 3)
    assert (rights_of_version(5).scopes, rights_of_version(6).scopes) == (0, 3)
    assert [rights_of_version(version).size for version in (3, 4, 6)] == [8, 16, 24]


def test_no_rule_lets_devices_be_made_or_opens_what_is_private():
    rules = dict(rules_for(7, readable=["/srv/data"], writable=["/w"], listed=["/ws"]))
    assert rules["/w"] & ((1 << 6) | (1 << 11) | (1 << 15)) == 0
    assert rules["/srv/data"] == rules["/usr"] == 0b1101
    assert rules["/ws"] == 0b1000
    for path in ("/", "/etc", "/proc", "/dev", "/tmp", "/home", "/root", "/run", "/sys", "/var", "/dev/shm"):
        assert path not in rules


def test_limits_are_those_of_each_process():
    found = dict(rlimits_of(Ceilings(seconds=5, memory_bytes=100, disk_bytes=7)))
    assert found[resource.RLIMIT_CPU] == 6
    assert found[resource.RLIMIT_DATA] == 100
    assert found[resource.RLIMIT_AS] == 400
    assert found[resource.RLIMIT_FSIZE] == 7
    assert found[resource.RLIMIT_CORE] == 0


def test_a_sandbox_holds_only_if_every_attempt_was_made_and_refused():
    """One that succeeded, one that is missing, one that could not be made, no answer at all: none of it holds."""
    held = "\n".join(f"{name} refused" for name in ATTEMPTS)
    assert verdict(held) == ""
    assert "could read squidbot's own files" in verdict(held.replace("secret refused", "secret done"))
    assert "could not be tried" in verdict(held.replace("tcp refused\n", ""))
    assert "could not be tried" in verdict(held.replace("tcp refused", "tcp not tried (ValueError)"))
    assert "could not be tried" in verdict("")
