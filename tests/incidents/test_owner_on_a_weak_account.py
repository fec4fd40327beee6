"""
The owner was whoever bore her address on any account of a kind. So a second mailbox that believes every From
field, or a second homeserver, which can say what it likes in anybody's name, opened her memory to its
strangers; and that of other people, who were known by their address alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_core.memory.scopes import OWNER
from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import MemoryScope, Purpose, ScopeKind
from agent_core.storage.layout import Layout
from devservers import MailPeer, MailServer, text_of
from gateway.errors import ConfigInvalid
from gateway.operations.privacy.inventory import people
from gateway.proactive.jobs.job_service import JobPlace
from gateway.routing.access import Access, Role
from gateway.settings import Settings, load_settings
from gateway.store.model import InboxRow, Job, JobKind, Turn
from gateway.store.states import InboxState
from gateway.turns.user_input import session_of
from tests.daemon import Daemon, email_settings
from tests.persons import find_person

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALICE, ALICE_MAIL, BOB_MAIL = "@alice:hs.test", "alice@mail.test", "bob@mail.test"


def matrix(name: str, server: str = "hs.test") -> dict[str, Any]:
    return {"name": name, "homeserver": f"https://{server}", "user_id": f"@{name}:{server}", "password": "pw",
            "allow_from": ["*"]}  # fmt: skip


def email(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "address": f"{name}@mail.test",
        "username": name,
        "password": "pw",
        "imap": {"host": "mail.test"},
        "smtp": {"host": "mail.test"},
        "trusted_authserv_ids": ["mail.test"],
        "allow_from": [BOB_MAIL],
        **more,
    }


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Settings]:
    def loaded(*aliases: Any, **channels: Any) -> Settings:
        path = tmp_path / "squidbot.yaml"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump({"owner": {"aliases": list(aliases)}, "channels": channels}))
        return load_settings(path, environ={})

    return loaded


def access_of(settings: Settings) -> Access:
    channels = settings.channels
    return Access(
        settings.owner.aliases,
        settings.allow_from(),
        kinds=channels.kinds(),
        apart=channels.separate_accounts(),
    )


def is_owner(settings: Settings, channel: str, address: str) -> bool:
    access = access_of(settings)
    known = access.role(channel, address, verified=True) is Role.OWNER
    assert (address in access.owner_addresses_on(channel)) == known
    return known


WEAKER = {
    "believes everybody": {"sender_verification": "off"},
    "believes another server": {"trusted_authserv_ids": ["mail.test", "evil.test"]},
    "is kept by another server": {"imap": {"host": "evil.test"}},
    "believes a field without a name": {"trust_headerless_auth_results": True},
}


@pytest.mark.parametrize("weaker", list(WEAKER))
def test_a_mailbox_that_believes_more(load: Callable[..., Settings], weaker: str) -> None:
    """Whoever bears her address there is not the owner; the first mailbox is what it was, and she is told."""
    settings = load(ALICE_MAIL, email=[email("bot"), email("desk", **WEAKER[weaker])])

    assert is_owner(settings, "bot", ALICE_MAIL)
    assert not is_owner(settings, "desk", ALICE_MAIL)
    assert any("channels.email[1]: you are not the owner there" in told for told in settings.warnings)


def test_another_homeserver(load: Callable[..., Settings]) -> None:
    """It could say anything in her name."""
    settings = load(ALICE, matrix=[matrix("bot"), matrix("club", "evil.test"), matrix("work")])

    assert [is_owner(settings, name, ALICE) for name in ("bot", "club", "work")] == [True, False, True]


def test_accounts_that_verify_alike_are_one(load: Callable[..., Settings]) -> None:
    """The negative control: the same server, fewer names, or signatures that we verify ourselves."""
    alike = [email("desk"), email("ops", trusted_authserv_ids=[], dkim="verify")]
    settings = load(ALICE_MAIL, email=[email("bot"), *alike])

    assert all(is_owner(settings, name, ALICE_MAIL) for name in ("bot", "desk", "ops"))
    assert not any("not the owner" in told for told in settings.warnings)


def test_an_account_that_is_named_is_trusted(load: Callable[..., Settings]) -> None:
    """By its name, and then no other one; a name that no account has is an error."""
    named = {"channel": "desk", "address": ALICE_MAIL}
    accounts = [email("bot"), email("desk", sender_verification="off")]

    both = load(ALICE_MAIL, named, email=accounts)
    assert is_owner(both, "bot", ALICE_MAIL)
    assert is_owner(both, "desk", ALICE_MAIL)
    assert not any("not the owner" in told for told in both.warnings)
    alone = load(named, email=accounts)
    assert not is_owner(alone, "bot", ALICE_MAIL)
    for wrong in ({"channel": "dusk", "address": ALICE_MAIL}, {"channel": "desk", "address": ALICE}):
        with pytest.raises(ConfigInvalid, match=r"owner\.aliases\[0\]"):
            load(wrong, email=accounts)


def turn(channel: str, address: str) -> Turn:
    session = SessionKey(channel, "thread-1", address)
    said = InboundMessage(
        channel=channel,
        account="bot",
        native_id="1",
        session=session,
        sender=Sender(address=address, verified=True),
        text="what do you know about me?",
        received_at=NOW,
    )
    row = InboxRow(1, said, InboxState.RUNNING, 1, 0, NOW, "t", None)
    return Turn("t", session, 1, (row,), 1, 0)


def scope(settings: Settings, channel: str, address: str) -> MemoryScope:
    return session_of(turn(channel, address), access_of(settings), Purpose.CHAT).scope


def test_nobody_elses_memory_is_opened_either(load: Callable[..., Settings], tmp_path: Path) -> None:
    """Bob of the weak mailbox is another person than Bob; what there is of him there is found with the rest."""
    weak = email("desk", sender_verification="off", allow_from=[BOB_MAIL, ALICE_MAIL])
    settings = load(ALICE_MAIL, email=[email("bot"), email("ops"), weak])

    assert scope(settings, "bot", ALICE_MAIL) == OWNER
    assert scope(settings, "bot", BOB_MAIL) == scope(settings, "ops", BOB_MAIL)
    assert scope(settings, "desk", ALICE_MAIL) == MemoryScope(ScopeKind.PERSON, f"{ALICE_MAIL} desk")
    there = scope(settings, "desk", BOB_MAIL)
    assert there not in (OWNER, scope(settings, "bot", BOB_MAIL))
    assert MemoryScope.parse(str(there)) == there

    layout = Layout(tmp_path / "home", tmp_path / "home" / "workspace")
    for one in (there, scope(settings, "bot", BOB_MAIL)):
        layout.document(one).parent.mkdir(parents=True)
        layout.document(one).write_text("likes tea")
    found = find_person(layout, tmp_path / "no.db", people([BOB_MAIL], []))
    assert {str(one) for one in found.documents} == {f"person:{BOB_MAIL}", f"person:{BOB_MAIL} desk"}


def test_nor_are_anybodys_jobs() -> None:
    """They are changed where they were made; the owner's wherever she is known to be the owner."""

    def place(channel: str, person: str, *persons: str) -> JobPlace:
        return JobPlace(SessionKey(channel, "thread-1", person), "a", person, persons=persons)

    where = SessionKey("bot", "thread-2", BOB_MAIL)
    job = Job("1", JobKind.REMIND, "tea", "at 2030-01-01T00:00", where, "a", BOB_MAIL, NOW)

    assert place("bot", BOB_MAIL).owns(job)
    assert not place("desk", BOB_MAIL).owns(job)
    assert place("desk", ALICE_MAIL, BOB_MAIL, ALICE_MAIL).owns(job)


def test_a_forger_is_told_nothing(
    mail_server: MailServer, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path
) -> None:
    """On a real server: what the owner has said on one mailbox is not said on the weak one in her name."""
    strong, weak, alice = fresh_mailbox("bot"), fresh_mailbox("desk"), fresh_mailbox("alice")
    settings = {
        "owner": {"aliases": [alice.address]},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "email": [
                email_settings(mail_server, strong.address, strong.password),
                email_settings(mail_server, weak.address, weak.password, alice.address, name="desk",
                               sender_verification="off"),
            ]
        },
    }  # fmt: skip

    def asks(bot: MailPeer, text: str) -> str:
        sent = alice.send(bot.address, "a question", text)
        return text_of(alice.wait_for(lambda mail: mail["In-Reply-To"] == sent))

    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up(within_s=60)
        asks(strong, "remember that my cat is called Tom")
        assert "Tom" in asks(strong, "What do you know about me?")
        assert "Tom" not in asks(weak, "What do you know about me?")
