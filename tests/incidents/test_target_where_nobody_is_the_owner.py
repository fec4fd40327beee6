"""
`agents.heartbeat.target` named the owner's address on a second homeserver, where that address is not the owner: the
configuration was called good, and every alert was skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.errors import ConfigInvalid
from gateway.settings import Settings, load_settings
from tests.incidents.test_owner_on_a_weak_account import ALICE, ALICE_MAIL, email, matrix

CHANNELS = {
    "matrix": [matrix("bot"), matrix("club", "evil.test"), matrix("work")],
    "email": [email("post"), email("desk", sender_verification="off")],
}


def load(folder: Path, target: str, *aliases: Any) -> Settings:
    path = folder / "squidbot.yaml"
    path.touch(mode=0o600)
    values = {
        "owner": {"aliases": [ALICE, ALICE_MAIL, *aliases]},
        "channels": CHANNELS,
        "agents": {"heartbeat": {"target": target}},
    }
    path.write_text(yaml.safe_dump(values))
    return load_settings(path, environ={})


@pytest.mark.parametrize(
    ("target", "account"),
    [(f"club:{ALICE}", "club"), ("club:!room:evil.test", "club"), (f"desk:{ALICE_MAIL}", "desk")],
)
def test_it_is_said(tmp_path: Path, target: str, account: str) -> None:
    """With its place, and with what to write; then it is taken."""
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, target)
    assert "agents.heartbeat.target" in str(caught.value)
    assert f"you are not the owner on '{account}'" in str(caught.value)
    assert f"{{channel: {account}, address: …}}" in str(caught.value)
    named = {"channel": account, "address": ALICE if account == "club" else ALICE_MAIL}
    assert load(tmp_path, target, named).agents.heartbeat.target == target


@pytest.mark.parametrize("target", [f"bot:{ALICE}", f"work:{ALICE}", f"post:{ALICE_MAIL}"])
def test_accounts_that_know_the_owner_are_taken(tmp_path: Path, target: str) -> None:
    """The control: the first account of a kind, and one on the same homeserver."""
    assert load(tmp_path, target).agents.heartbeat.target == target
