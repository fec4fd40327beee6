"""Keys with a new name: the old one is refused, and the complaint names the new one."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gateway.settings import Settings
from gateway.settings.descriptions import model_in
from gateway.settings.renamed import RENAMED
from tests.config_files import complaint, complaints

MAIL = {
    "address": "bot@mail.test",
    "username": "bot",
    "password": "x",
    "imap": {"host": "localhost"},
    "smtp": {"host": "localhost"},
    "trusted_authserv_ids": ["mail.test"],
}
MATRIX = {"homeserver": "http://127.0.0.1:1", "user_id": "@bot:hs.test", "password": "x"}


def is_key(path: str) -> bool:
    """Whether the settings have such a key."""
    model: Any = Settings
    for name in path.split("."):
        if name == "*":
            continue
        field = model.model_fields.get(name) if model is not None else None
        if field is None:
            return False
        model = model_in(field.annotation)
    return True


def file_with(path: str, value: object) -> str:
    data: dict[str, Any] = {"llm": {"models": {"m": {"model": "demo/x"}}, "pools": {"main": ["m"]}}}
    if path.startswith("channels.email"):
        data["channels"] = {"email": dict(MAIL)}
    if path.startswith("channels.matrix"):
        data["channels"] = {"matrix": dict(MATRIX)}
    if path.startswith("gateway.http"):
        data["gateway"] = {"http": {"listen": "127.0.0.1:1"}}
    *sections, last = path.replace("*", "m").split(".")
    inner = data
    for name in sections:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return yaml.safe_dump(data, sort_keys=False)


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_key_is_refused_with_its_new_name(tmp_path, old):
    """One sentence with line and key, whatever stands behind the key."""
    new = RENAMED[old]
    text = file_with(old, 7)
    line = next(
        n for n, row in enumerate(text.splitlines(), 1) if row.strip() == f"{old.rpartition('.')[2]}: 7"
    )
    named = new if new.rpartition(".")[0] != old.rpartition(".")[0] else new.rpartition(".")[2]
    said = complaint(tmp_path, text)
    assert said.startswith(f'line {line}, {old.replace("*", "m")}: is called "{named}" now')


@pytest.mark.parametrize(("old", "new"), sorted(RENAMED.items()))
def test_the_new_key_is_one_and_the_old_is_none(old, new):
    """A slip in the table would send people to a key that does not exist."""
    assert is_key(new)
    assert not is_key(old)


def test_a_key_that_does_not_exist_is_noticed():
    """The control of the test above."""
    assert is_key("channels.email.circuit_breaker.open_minutes")
    assert not is_key("channels.email.circuit_breaker.opened_minutes")
    assert not is_key("channels.mail.batching")


def test_all_come_at_once_also_below_an_old_section_and_in_a_list_of_accounts(tmp_path):
    """A person moves to the new names in one go, and other mistakes stand among them."""
    text = """\
agents:
  approve_tools: [send_file]
  wrkspace: x
channels:
  email:
  - address: bot@mail.test
    username: bot
    password: x
    imap: {host: localhost}
    smtp: {host: localhost}
    trusted_authserv_ids: [mail.test]
    brake:
      closed_minutes: 30
      bounces_per_hour: 2
  matrix:
    homeserver: "http://127.0.0.1:1"
    user_id: "@bot:hs.test"
    password: x
    acknowledge: reactions
"""
    _, *lines = complaints(tmp_path, text).splitlines()
    assert [line.strip() for line in lines] == [
        'line 2, agents.approve_tools: is called "tools.require_approval" now',
        'line 3, agents.wrkspace: unknown key; did you mean "workspace"?',
        'line 12, channels.email[0].brake: is called "circuit_breaker" now',
        'line 13, channels.email[0].brake.closed_minutes: is called "open_minutes" now',
        "line 14, channels.email[0].brake.bounces_per_hour: is gone, and nothing takes its place; remove this line",
        'line 19, channels.matrix.acknowledge: is called "ack_reactions" now, which is true or false',
    ]


def test_a_key_of_that_name_elsewhere_is_not_meant(tmp_path):
    """Names that people choose may be any."""
    text = "llm:\n  models: {brake: {model: demo/x, idle_s: 5}}\n  pools: {main: [brake]}"
    assert "unknown key" in complaint(tmp_path, text)


def test_what_is_gone_is_named(tmp_path):
    """`tools.shell.image` and the back end `container`: one plain sentence each, and nothing about others."""
    image = complaint(tmp_path, 'tools:\n  shell:\n    image: "python:3.13"\n')
    assert image.startswith("line 3, tools.shell.image: is gone, and so is the back end `container`")
    backend = complaint(tmp_path, "tools:\n  shell:\n    backend: container\n")
    assert "tools.shell.backend" in backend
    assert "landlock" in backend
