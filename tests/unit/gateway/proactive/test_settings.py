"""The settings of heartbeat and schedule: what is wrong is said with its place, at the start."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings

BASE = """
owner: {aliases: ["@ann:hs.test", "ann@mail.test"]}
channels:
  matrix: {homeserver: "http://127.0.0.1:1", user_id: "@bot:hs.test", password: "x"}
agents:
"""


SEVERAL = """
owner: {aliases: ["@ann:hs.test", "ann@mail.test"]}
channels:
  matrix:
  - {homeserver: "http://127.0.0.1:1", user_id: "@bot:hs.test", password: "x"}
  - {name: work, homeserver: "http://127.0.0.1:1", user_id: "@work:hs.test", password: "x"}
  - {name: old, enabled: false, homeserver: "http://127.0.0.1:1", user_id: "@old:hs.test", password: "x"}
  email:
  - name: post
    address: bot@mail.test
    username: bot@mail.test
    password: x
    trusted_authserv_ids: [mail.test]
    imap: {host: 127.0.0.1, port: 1}
    smtp: {host: 127.0.0.1, port: 1}
agents:
"""


def load(tmp_path, agents: str, base: str = BASE):
    path = tmp_path / "squidbot.yaml"
    path.write_text(base + agents)
    path.chmod(0o600)
    return load_settings(path)


@pytest.mark.parametrize(
    ("agents", "place", "said"),
    [
        ("  heartbeat: {timezone: Mars/Phobos}", "heartbeat.timezone", "unknown time zone"),
        ("  heartbeat: {active_hours_start: '25:00'}", "heartbeat.active_hours_start", "must be a time"),
        ("  heartbeat: {active_hours_end: 1320}", "heartbeat.active_hours_end", "in quotes"),
        ("  heartbeat: {target: somewhere}", "heartbeat.target", "is not a target"),
        ("  heartbeat: {target: 'matrix:@bob:hs.test'}", "heartbeat.target", "not one of owner.aliases"),
        ("  heartbeat: {target: 'email:ann@mail.test'}", "heartbeat.target", "no channel 'email'"),
        ("  heartbeat: {watch: [{file: a, due: true}]}", "heartbeat.watch", "exactly one of"),
        ("  heartbeat: {digest: {at: 480}}", "heartbeat.digest.at", "in quotes"),
        ("  heartbeat: {digest: {at: '24:00'}}", "heartbeat.digest.at", "must be a time"),
        ("  heartbeat: {limits: {steps: 0}}", "heartbeat.limits.steps", "greater than or equal to 1"),
        ("  heartbeat: {tarket: x}", "heartbeat.tarket", "tarket"),
        ("  schedule: {timezone: Nowhere}", "schedule.timezone", "unknown time zone"),
        ("  schedule: {misfire: perhaps}", "schedule.misfire", "say"),
        ("  schedule: {jobs_per_person: 0}", "schedule.jobs_per_person", "greater than or equal to 1"),
        ("  schedule: {min_interval_minutes: 0}", "schedule.min_interval_minutes", "0.01"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, agents, place, said):
    """The key and the reason stand in one error, before anything has started."""
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, agents)
    assert f"agents.{place}" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "place", "said"),
    [
        ("require_approval: [send_file, sendfile]", "require_approval[1]", "there is no tool 'sendfile'"),
        ("approval_timeout_minutes: 0", "approval_timeout_minutes", "0.01"),
    ],
)
def test_what_is_wrong_with_approvals_is_said_with_its_place(tmp_path, tools, place, said):
    """A slip of the pen would leave a tool unguarded."""
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, "  workspace: w\n" + f"tools: {{{tools}}}")
    assert f"tools.{place}" in str(caught.value)
    assert said in str(caught.value)


def test_what_is_right_is_taken(tmp_path):
    """Targets of the owner, in any case of a mail address, a room, watches and a digest."""
    for target in ("matrix:@ann:hs.test", "matrix:!room:hs.test"):
        settings = load(tmp_path, f"  heartbeat: {{target: '{target}', watch: [{{command: df -h /}}]}}")
        assert settings.agents.heartbeat.target == target
        assert settings.warnings == ()


def test_an_empty_window_is_a_warning(tmp_path):
    """It is allowed and hardly meant."""
    [warning] = load(
        tmp_path, "  heartbeat: {active_hours_start: '08:00', active_hours_end: '08:00'}"
    ).warnings
    assert "never fires" in warning


@pytest.mark.parametrize(
    "target",
    ["matrix:@ann:hs.test", "work:@ann:hs.test", "work:!room:hs.test", "post:Ann@mail.test"],
)
def test_a_target_on_one_of_several_accounts_is_named_by_the_account(tmp_path, target):
    """The account's own name, and for the first one the name of its kind."""
    assert load(tmp_path, f"  heartbeat: {{target: '{target}'}}", SEVERAL).agents.heartbeat.target == target


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "email:ann@mail.test",
            "no channel 'email' is enabled under channels; the channels are: matrix, work, post",
        ),
        ("old:@ann:hs.test", "no channel 'old'"),
        ("elsewhere:@ann:hs.test", "no channel 'elsewhere'"),
        ("work:ann@mail.test", "'work' is an account of matrix"),
        ("post:@ann:hs.test", "'post' is an account of email"),
        ("work:@bob:hs.test", "not one of owner.aliases"),
        ("work:nobody", "has no place 'nobody'; write it like @you:example.org"),
    ],
)
def test_a_target_on_no_account_is_said_with_its_place(tmp_path, target, said):
    """What would be skipped at every check-in is an error before the first."""
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, f"  heartbeat: {{target: '{target}'}}", SEVERAL)
    assert "agents.heartbeat.target" in str(caught.value)
    assert said in str(caught.value)


def test_a_room_without_an_owner_on_its_kind_of_channel_is_an_error(tmp_path):
    """Nobody could be alone in it with the bot."""
    base = BASE.replace('"@ann:hs.test", ', "")
    with pytest.raises(ConfigInvalid, match="no address on matrix"):
        load(tmp_path, "  heartbeat: {target: 'matrix:!room:hs.test'}", base)


def test_one_time_zone_counts_everywhere(tmp_path):
    """Check-ins, digest, schedule and budget follow it, unless one of them has its own; a wrong name is told once."""
    zone = "timezone: Asia/Tokyo\n"
    settings = load(tmp_path, "  heartbeat: {interval_minutes: 60}\n", zone + BASE)
    assert str(settings.agents.heartbeat.schedule().zone) == "Asia/Tokyo"
    assert str(settings.llm.budget.limits(settings.agents.heartbeat.timezone).zone) == "Asia/Tokyo"
    own = load(tmp_path, "  heartbeat: {timezone: Europe/Berlin}\n", zone + BASE)
    assert (own.agents.heartbeat.timezone, own.timezone) == ("Europe/Berlin", "Asia/Tokyo")
    assert load(tmp_path, "  {}\n", BASE).agents.heartbeat.timezone == "local"
    with pytest.raises(ConfigInvalid) as error:
        load(tmp_path, "  {}\n", "timezone: Mars\n" + BASE)
    assert str(error.value).count("Mars") == 1
