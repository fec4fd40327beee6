"""The profile `scale` of compose.yaml, for real: PostgreSQL, three daemons, one of which is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devservers import MailPeer
from devservers.mail_peer import text_of
from devservers.ports import lease_ports
from tests.deploy.compose import Compose, build_standin, own_secrets
from tests.deploy.engine import BASE_IMAGE, Engine

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

BOT = "bot@squidbot.internal"


@pytest.fixture(scope="module")
def scale(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """As the head of scale.yaml says: one command, with a mail server."""
    folder = tmp_path_factory.mktemp("scale")
    leases = lease_ports(2, folder)
    imap, smtp = (str(lease.port) for lease in leases)
    compose = Compose(
        engine,
        project="squidscale",
        profiles=("scale", "mail"),
        environment={
            **own_secrets(folder / "secrets"),
            "SQUIDBOT_CONFIG": "./deploy/compose/scale.yaml",
            "DEBIAN_IMAGE": BASE_IMAGE,
            "POSTGRES_IMAGE": build_standin(engine, "postgres"),
            "MAIL_IMAP_PORT": imap,
            "MAIL_SUBMISSION_PORT": smtp,
        },
    )
    compose.run("build", "mail", limit_s=400)
    try:
        compose.run("up", "--detach", "--wait", "--wait-timeout", "180")
        yield compose
    finally:
        compose.run("down", "--volumes", check=False)
        for lease in leases:
            lease.release()


@pytest.fixture(scope="module")
def owner(scale: Compose, tmp_path_factory: pytest.TempPathFactory) -> MailPeer:
    """Who writes to the bot."""
    authority = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.write_text(scale.run("exec", "-T", "mail", "cat", "/ca/ca.pem").stdout)
    return MailPeer(
        "owner@squidbot.internal",
        Path(scale.environment["LOCAL_SECRETS"], "mail-owner-password").read_text().strip(),
        imap_port=int(scale.environment["MAIL_IMAP_PORT"]),
        smtp_port=int(scale.environment["MAIL_SUBMISSION_PORT"]),
        ca_file=authority,
    )


def processes(scale: Compose) -> list[dict[str, Any]]:
    """The daemons on the database, as `squidbot status` says."""
    status: dict[str, Any] = json.loads(scale.squidbot("status", "--json"))
    found: list[dict[str, Any]] = status["processes"]
    return found


def answered(owner: MailPeer, text: str, *, within_s: float) -> None:
    """A mail has its one answer."""
    asked = owner.send(BOT, text, text)
    answer = owner.wait_for(lambda mail: mail["In-Reply-To"] == asked, within_s)
    assert text_of(answer)


def test_all_work_on_one_database_and_one_may_die(scale: Compose, owner: MailPeer) -> None:
    """Whoever has the account is killed; what is written then is answered once, by whoever has it next."""
    answered(owner, "hello", within_s=60)
    found = processes(scale)
    assert len(found) == 3, found
    [holder] = [each for each in found if "email" in each["accounts"]]
    container = holder["process"].rpartition(" on ")[2]
    scale.engine.docker("kill", container)
    answered(owner, "and now?", within_s=90)
    assert sum(mail["From"].addresses[0].addr_spec == BOT for mail in owner.list()) == 2
