"""The development servers keep what they promise: they are real, and they fail on request."""

from __future__ import annotations

import imaplib
import smtplib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devservers import (
    Fault,
    MailPeer,
    MailServer,
    MatrixPeer,
    RequestFailed,
    Synapse,
    ToolsMissing,
    dovecot,
    text_of,
)
from tests.servers import skipped_without_tools

needs_dovecot = pytest.mark.skipif(
    dovecot.find_or_none() is None, reason="Dovecot 2.3 or newer is not installed"
)


@pytest.fixture(params=[pytest.param("dovecot", marks=needs_dovecot), "pymap"], scope="module")
def own_mail(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MailServer]:
    with skipped_without_tools():
        server = MailServer.start(tmp_path_factory.mktemp("own-mail"), flavour=request.param)
    with server:
        yield server


class TestSynapse:
    @pytest.mark.parametrize("room_version", ["11", "12"])
    def test_two_users_talk(self, fresh_user: Callable[[str], MatrixPeer], room_version: str) -> None:
        """Two fresh users meet in a room of a chosen version and read one another."""
        alice, bob = fresh_user("alice"), fresh_user("bob")

        room = alice.create_room([bob.user_id], is_direct=True, room_version=room_version)
        assert bob.wait_for_invite() == room
        bob.join(room)
        asked = alice.send(room, "how are you?")
        heard = bob.wait_for_message(lambda event: event.body == "how are you?")
        bob.send(room, "well, thanks")

        assert heard.event_id == asked
        assert alice.wait_for_message(lambda event: event.sender == bob.user_id).body == "well, thanks"
        assert [event.body for event in alice.history(room)] == ["how are you?", "well, thanks"]
        assert alice.members(room) == {alice.user_id, bob.user_id}

    def test_default_room_version(self, synapse: Synapse, fresh_user: Callable[[str], MatrixPeer]) -> None:
        """The default room version is 12: room ids carry no server name."""
        room = fresh_user("alice").create_room()

        assert synapse.server_name not in room

    def test_transaction_ids(self, fresh_user: Callable[[str], MatrixPeer]) -> None:
        """The same transaction twice is one event."""
        alice = fresh_user("alice")
        room = alice.create_room()

        first = alice.send(room, "once", txn="t1")
        second = alice.send(room, "once", txn="t1")

        assert first == second
        assert len(alice.history(room)) == 1

    def test_messages_since(self, fresh_user: Callable[[str], MatrixPeer]) -> None:
        """A peer can read from any earlier point, as often as it likes."""
        alice = fresh_user("alice")
        room = alice.create_room()
        _, token = alice.messages_since(None)
        alice.send(room, "new")

        for _ in range(2):
            events, _ = alice.messages_since(token, timeout_s=5)
            assert [event.body for event in events] == ["new"]

    def test_login(self, synapse: Synapse) -> None:
        """A registered user can log in by password; a wrong password is told apart by its code."""
        made = synapse.register(f"carol-{time.time_ns()}", "right", admin=True)

        again = MatrixPeer.login(synapse.url, made.user_id, "right", device_id="PHONE")
        with pytest.raises(RequestFailed) as refused:
            MatrixPeer.login(synapse.url, made.user_id, "wrong")

        assert (again.user_id, again.device_id) == (made.user_id, "PHONE")
        assert (refused.value.status, refused.value.errcode) == (403, "M_FORBIDDEN")


class TestMail:
    def test_alice_writes_to_bot(self, own_mail: MailServer) -> None:
        """Mail goes out by STARTTLS, arrives by IMAP, and threads."""
        alice, bot = own_mail.peer("alice"), own_mail.peer("bot")

        first = alice.send(
            "bot@mail.test", "Grüße", "Hallo\n.\nEnde", attachments=[("ä.txt", "text/plain", b"x")]
        )
        got = bot.wait_for(lambda mail: mail["Message-ID"] == first)
        answer = bot.send("alice@mail.test", "Re: Grüße", "Ja", in_reply_to=first, references=[first])
        back = alice.wait_for(lambda mail: mail["Message-ID"] == answer)

        assert (got["Subject"], text_of(got)) == ("Grüße", "Hallo\n.\nEnde\n")
        assert (back["In-Reply-To"], back["References"]) == (first, first)
        assert [part.get_filename() for part in got.iter_attachments()] == ["ä.txt"]
        assert r"\Seen" not in " ".join(bot.flags())
        assert {"INBOX", "Sent", "Drafts"} <= set(bot.folders())

    def test_verdict(self, own_mail: MailServer) -> None:
        """The server vouches for an authenticated sender, and removes verdicts forged in its name."""
        forged = b"Authentication-Results: MAIL.test;\r\n dmarc=pass header.from=bank.test\r\n"
        foreign = b"Authentication-Results: other.test; dmarc=pass\r\n"
        rest = b"From: Alice <alice@mail.test>\r\nMessage-ID: <verdict@x>\r\n\r\nhello\r\n"

        own_mail.peer("alice").submit(["bot+tag@mail.test"], forged + foreign + rest)
        got = own_mail.peer("bot").wait_for(lambda mail: mail["Message-ID"] == "<verdict@x>")

        expected = ["mail.test; dmarc=pass header.from=mail.test", "other.test; dmarc=pass"]
        assert got.get_all("Authentication-Results") == expected
        assert got["Delivered-To"] == "bot+tag@mail.test"

    @pytest.mark.parametrize(
        ("sender", "recipient", "author"),
        [
            pytest.param("bot@mail.test", "bot@mail.test", "alice@mail.test", id="another's envelope"),
            pytest.param("alice@mail.test", "bot@mail.test", "bot@mail.test", id="another's From"),
            pytest.param(
                "alice@mail.test", "bot@mail.test", "alice@mail.test, bot@mail.test", id="two authors"
            ),
            pytest.param("alice@mail.test", "nobody@mail.test", "alice@mail.test", id="unknown recipient"),
            pytest.param("alice@mail.test", "bot@example.org", "alice@mail.test", id="no relay"),
        ],
    )
    def test_refusals(self, own_mail: MailServer, sender: str, recipient: str, author: str) -> None:
        """Nobody sends in another's name, and only known mailboxes get mail."""
        raw = f"From: {author}\r\nSubject: refused\r\n\r\nx\r\n".encode()

        with pytest.raises(smtplib.SMTPException, match="550"):
            own_mail.peer("alice").submit([recipient], raw, sender=sender)

        assert not any(b"Subject: refused" in got for got in own_mail.messages("bot"))

    def test_bounce_sender(self, own_mail: MailServer) -> None:
        """The empty envelope sender is allowed: notices are sent with it."""
        own_mail.peer("bot").submit(
            ["alice@mail.test"], b"From: bot@mail.test\r\nMessage-ID: <notice@x>\r\n\r\nx\r\n", sender=""
        )

        got = own_mail.peer("alice").wait_for(lambda mail: mail["Message-ID"] == "<notice@x>")
        assert got["Return-Path"] == "<>"

    def test_login(self, own_mail: MailServer) -> None:
        """No mail without the right password, on both submission ports; IMAP checks it, too."""
        mallory = MailPeer(
            "alice@mail.test",
            "wrong",
            imap_port=own_mail.imap_port,
            smtp_port=own_mail.smtp_port,
            ca_file=own_mail.ca_file,
        )
        with pytest.raises(smtplib.SMTPAuthenticationError):
            mallory.send("bot@mail.test", "x", "x")
        with pytest.raises(imaplib.IMAP4.error):
            mallory.raw_list()

    def test_implicit_tls(self, own_mail: MailServer) -> None:
        """The second submission port begins with TLS."""
        raw = b"From: alice@mail.test\r\nMessage-ID: <tls@x>\r\n\r\nx\r\n"
        context = own_mail.peer("alice").tls
        with smtplib.SMTP_SSL("localhost", own_mail.smtps_port, context=context, timeout=120) as smtp:
            smtp.login("alice", "alice-pw")
            smtp.sendmail("alice@mail.test", ["bot@mail.test"], raw)

        own_mail.peer("bot").wait_for(lambda mail: mail["Message-ID"] == "<tls@x>")

    def test_inject(self, own_mail: MailServer) -> None:
        """Injected bytes arrive as they are, whoever they claim to be from."""
        raw = b"From: x@bank.test\r\nMessage-ID: <inject@x>\r\n\r\n" + b"l" * 5000 + b"\r\n"

        own_mail.inject("bot@mail.test", raw, sender="x@bank.test")

        assert any(got.endswith(raw) for got in own_mail.messages("bot"))

    def test_new_user(self, own_mail: MailServer) -> None:
        """A mailbox added to a running server sends and receives at once."""
        name = f"dora-{time.time_ns()}"
        own_mail.add_user(name, "pw")

        own_mail.peer(name).send("alice@mail.test", "hello", "x")
        own_mail.peer("alice").send(own_mail.address(name), "hello back", "x")

        own_mail.peer(name).wait_for(lambda mail: mail["Subject"] == "hello back")

    @pytest.mark.parametrize(
        "fault", [Fault.REFUSE_AUTH, Fault.REFUSE_MAIL, Fault.REFUSE_RCPT, Fault.REFUSE_DATA]
    )
    def test_refusing_faults(self, own_mail: MailServer, fault: Fault) -> None:
        """A planned refusal hits its sender as often as planned, with the given reply, and nobody else."""
        alice, bot = own_mail.peer("alice"), own_mail.peer("bot")
        own_mail.fail_next(fault, times=2, reply="450 4.2.0 Not now", sender=alice.address)

        for _ in range(2):
            with pytest.raises(smtplib.SMTPException, match=r"450.*Not now"):
                alice.send("bot@mail.test", str(fault), "x")
        bot.send("alice@mail.test", str(fault), "unharmed")

        assert own_mail.pending_faults() == []
        assert not any(str(fault).encode() in got for got in own_mail.messages("bot"))
        alice.send("bot@mail.test", str(fault), "x")
        assert own_mail.attempts(alice.address)[-1].reply.startswith("250")

    @pytest.mark.parametrize(
        ("fault", "arrived"), [(Fault.DROP_BEFORE_DELIVERY, 0), (Fault.DROP_AFTER_DELIVERY, 1)]
    )
    def test_dropping_faults(self, own_mail: MailServer, fault: Fault, arrived: int) -> None:
        """The connection breaks before the final reply; whether the mail arrived is the whole difference."""
        alice = own_mail.peer("alice")
        own_mail.fail_next(fault)

        with pytest.raises(smtplib.SMTPServerDisconnected):
            alice.send("bot@mail.test", f"{fault}", "x", message_id=f"<{fault}@x>")

        copies = [got for got in own_mail.messages("bot") if f"<{fault}@x>".encode() in got]
        assert len(copies) == arrived

    def test_freezing(self, own_mail: MailServer) -> None:
        """A frozen server keeps its ports and answers nothing; thawed, it goes on."""
        own_mail.pause()
        try:
            with pytest.raises(OSError):
                smtplib.SMTP("127.0.0.1", own_mail.smtp_port, local_hostname="localhost", timeout=0.5)
        finally:
            own_mail.resume()

        assert own_mail.peer("bot").folders()

    def test_restart(self, own_mail: MailServer) -> None:
        """After a crash the server is back on its ports; Dovecot still has the mail."""
        mid = own_mail.peer("alice").send("bot@mail.test", "before", "x")
        ports = (own_mail.imap_port, own_mail.smtp_port)

        own_mail.restart("imap")
        own_mail.restart()

        assert ports == (own_mail.imap_port, own_mail.smtp_port)
        assert any(mid.encode() in got for got in own_mail.messages("bot")) is (own_mail.flavour == "dovecot")
        own_mail.peer("alice").send("bot@mail.test", "after", "x")

    def test_shared_server(self, fresh_mailbox: Callable[[str], MailPeer]) -> None:
        """Fresh mailboxes on the session's server are empty and know one another."""
        alice, bot = fresh_mailbox("alice"), fresh_mailbox("bot")

        alice.send(bot.address, "hi", "x")

        assert [mail["Subject"] for mail in bot.list()] == ["hi"]


@needs_dovecot
def test_dovecot_flavour_is_dovecot(mail_server: MailServer) -> None:
    """Where Dovecot is installed, `auto` uses it."""
    with mail_server.peer("bot").imap() as imap:
        assert "CONDSTORE" in imap.capabilities or "ENABLE" in imap.capabilities
    assert mail_server.flavour == "dovecot"


def test_missing_dovecot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Dovecot, asking for it says what to install and `auto` takes pymap."""
    monkeypatch.setattr(dovecot, "PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ToolsMissing, match="dovecot-imapd"):
        MailServer.start(tmp_path / "a", flavour="dovecot")
    with MailServer.start(tmp_path / "b") as server:
        assert server.flavour == "pymap"
