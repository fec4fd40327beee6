"""Outgoing mails, the intake that they answer, and the settings: all pure."""

from __future__ import annotations

import email
from datetime import UTC, datetime
from email.header import decode_header, make_header
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_core.messages import MessageContext, OutboundKind, OutboundMessage, SessionKey
from channels.base import DeliveryFailed
from channels.email.compose.outbound_mail import compose
from channels.email.config import EmailConfig
from channels.email.mail_route import MailRoute
from channels.email.parse.mail_threads import session_of
from channels.email.parse.transfer_encoding import unflow
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from channels.markup import to_text
from tests.rows import rows

BOT = "bot@mail.test"

SESSION = session_of("email", "ab" * 12, "alice@mail.test")


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "address": "Bot@Mail.test",
        "username": "bot",
        "password": "secret-pw",
        "imap": {"host": "mail.test", "port": 993},
        "smtp": {"host": "mail.test"},
        "allow_from": ["alice@mail.test"],
        "trusted_authserv_ids": ["MX.mail.test"],
    } | changes


def row(key: str = "k1", text: str = "Hello", **changes: Any) -> OutboundMessage:
    values: dict[str, Any] = {
        "id": key,
        "channel": "email",
        "account": BOT,
        "session": SESSION,
        "text": text,
        "created_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "context": {
            "subject": "Lunch",
            "reply_to": "al@mail.test",
            "route": {"message_id": "<q@x>", "references": ["<r@x>"]},
        },
    }
    return OutboundMessage(**values | changes)


def sent(message: OutboundMessage, *, self_copy: bool = True) -> Any:
    return email.message_from_bytes(compose(message, address=BOT, self_copy=self_copy).raw)


class TestCompose:
    def test_an_answer(self) -> None:
        """Both versions, the thread, the marks of an automatic answer, the envelope."""
        outgoing = compose(row(text="**Hi** ü\n\n<script>x</script>"), address=BOT, self_copy=True)
        mail = email.message_from_bytes(outgoing.raw)
        plain, html = mail.get_payload()

        assert mail["Message-ID"] == outgoing.message_id
        assert mail["In-Reply-To"] == "<q@x>"
        assert mail["References"] == "<r@x> <q@x>"
        assert mail["Subject"] == "Re: Lunch"
        assert mail["Date"] == "Fri, 02 Jan 2026 03:04:05 +0000"
        assert mail["Auto-Submitted"] == "auto-replied"
        assert (mail["From"], mail["To"]) == (BOT, "al@mail.test")
        assert plain.get_payload(decode=True).decode().replace("\r\n", "\n") == "Hi ü\n\n<script>x</script>"
        assert plain.get_param("format") == "flowed"
        assert "<strong>Hi</strong> ü" in html.get_payload(decode=True).decode()
        assert "<script>" not in html.get_payload(decode=True).decode()
        assert outgoing.envelope.sender == BOT
        assert outgoing.envelope.recipient == "al@mail.test"
        assert outgoing.envelope.copies == ("bot+sent@mail.test", BOT)
        assert b"\n" not in outgoing.raw.replace(b"\r\n", b"")
        assert max(map(len, outgoing.raw.split(b"\r\n"))) < 300

    def test_the_same_row_gives_the_same_bytes(self) -> None:
        """An attempt that is repeated hands in the same mail."""
        assert compose(row(), address=BOT, self_copy=True) == compose(row(), address=BOT, self_copy=True)
        assert compose(row(), address=BOT, self_copy=False).envelope.copies == ()

    @rows(
        ("kind", "answers", "sender"),
        [
            (OutboundKind.REPLY, True, BOT),
            (OutboundKind.APOLOGY, True, ""),
            (OutboundKind.NOTICE, True, ""),
            (OutboundKind.NOTICE, False, BOT),
            (OutboundKind.ALERT, False, BOT),
            (OutboundKind.MESSAGE, False, BOT),
        ],
    )
    def test_who_hears_if_it_does_not_arrive(self, kind: OutboundKind, answers: bool, sender: str) -> None:
        """Of answers and letters we do; of a note that something is not answered nobody does, so no loop begins."""
        context = {"subject": "Lunch", "route": {"message_id": "<q@x>"}} if answers else {}
        envelope = compose(row(kind=kind, context=context), address=BOT, self_copy=True).envelope
        assert (envelope.sender, envelope.instead) == (sender, BOT)
        assert envelope.copies == ("bot+sent@mail.test", BOT)

    @rows(
        ("subject", "expected"),
        [
            ("Lunch", "Re: Lunch"),
            ("RE: Lunch", "RE: Lunch"),
            ("Aw: Essen", "Aw: Essen"),
            ("Re[2]: x", "Re[2]: x"),
            ("", "Re: (no subject)"),
            ("a\r\nBcc: victim@x.test", "Re: a Bcc: victim@x.test"),
            ("Grüße " * 40, "Re: " + ("Grüße " * 40)[:195] + "…"),
            ("=?utf-8?q?x?=", "Re: =?utf-8?q?x?="),
        ],
    )
    def test_subjects(self, subject: str, expected: str) -> None:
        """One Re:, one line, bounded, and nobody else's header in it."""
        mail = sent(
            row(context={"subject": subject, "reply_to": "al@mail.test", "route": {"message_id": "<q@x>"}})
        )

        assert str(make_header(decode_header(mail["Subject"]))) == expected
        assert mail["Bcc"] is None
        assert all(len(word) <= 75 for word in mail["Subject"].split())

    def test_a_question_says_so_in_its_subject(self) -> None:
        """It waits for somebody, so it has its own first sentence before the subject that it is about."""
        asked = row(
            kind=OutboundKind.NOTICE,
            text="**a1b2c3**: I need your approval before I use `send`:\n\nmore",
            context={"subject": "Re: Lunch", "reply_to": "al@mail.test", "route": {"message_id": "<q@x>"}},
            rings_for=("al@mail.test",),
        )
        mail = sent(asked)
        assert str(make_header(decode_header(mail["Subject"]))) == (
            "a1b2c3: I need your approval before I use send – Re: Lunch"
        )
        assert mail["In-Reply-To"] == "<q@x>"
        assert sent(asked.model_copy(update={"rings_for": None}))["Subject"] == "Re: Lunch"

    @rows(
        ("text", "expected"),
        [
            ("**d6**: my answer to `bob@mail.test` waits.\n\nIt is", "d6: my answer to bob@mail.test waits."),
            ("\n---\n> *well* [here](https://a.test/b)", "well here (https://a.test/b)"),
            ("snake_case_name and 2*3", "snake_case_name and 2*3"),
            (
                "Hello, I am squidbot. This message proves that I can reach you; answer it.",
                "Hello, I am squidbot.",
            ),
            ("It is 3.5 degrees. Cold!", "It is 3.5 degrees."),
            ("one two three " * 20, "one two three one two three one two three one two three one two three…"),
            ("x" * 100, "x" * 71 + "…"),
            ("**  **\n# ", "Message"),
            ("| bird | place |\n|---|---|\n| heron | reeds |", "bird | place"),
            ("", "Message"),
        ],
    )
    def test_subjects_without_markup(self, text: str, expected: str) -> None:
        """A subject is plain text: no marks of Markdown are left in it, also not in the middle."""
        mail = sent(row(text=text, kind=OutboundKind.ALERT, context={}))

        assert str(make_header(decode_header(mail["Subject"]))) == expected

    def test_what_answers_nothing(self) -> None:
        """An alert goes to the person in the session, is auto-generated, and takes its subject from its text."""
        mail = sent(row(text="# Disk *full*\n\nreally", kind=OutboundKind.ALERT, context={}))

        assert (mail["To"], mail["Subject"]) == ("alice@mail.test", "Disk full")
        assert mail["Auto-Submitted"] == "auto-generated"
        assert mail["In-Reply-To"] is None

    def test_foreign_ids_are_checked(self) -> None:
        """Broken ids and garbage in the context do not reach the header."""
        context = {
            "reply_to": "al@mail.test",
            "subject": "s",
            "route": {"message_id": "<a\r\nX: y>", "references": ["<b@x>", "<c d>"]},
        }
        mail = sent(row(context=context))

        assert mail["In-Reply-To"] is None
        assert mail["References"] == "<b@x>"

    @rows("reply_to", ["a@b@c", "x\r\n@y.test", "älice@mail.test"])
    def test_nobody_to_write_to(self, reply_to: str) -> None:
        """Then it fails for good, in words."""
        with pytest.raises(DeliveryFailed):
            compose(row(context={"reply_to": reply_to}), address=BOT, self_copy=True)
        with pytest.raises(DeliveryFailed):
            compose(row(context={}, session=SessionKey("email", "x")), address=BOT, self_copy=True)

    @given(st.text(max_size=200))
    def test_any_text_survives(self, text: str) -> None:
        """The plain version is what `to_text` makes of it, once its lines are joined again."""
        mail = sent(row(text=text))
        plain = mail.get_payload()[0].get_payload(decode=True).decode("utf-8", "surrogatepass")

        wanted = "\n".join(line.rstrip(" ") for line in to_text(text).split("\n"))
        assert unflow(plain.replace("\r\n", "\n")).split() == wanted.split()


class TestIntake:
    @staticmethod
    def take(raw: bytes, **changes: Any) -> Any:
        config = EmailConfig.model_validate(settings(sender_verification="off", **changes))
        intake = MailIntake("email", config, AnswerLimiter(config.limits))
        arrival = read_arrival(7, datetime(2026, 1, 1, tzinfo=UTC), raw, whole=True)
        return intake.convert(arrival, uidvalidity=3)

    def test_a_message(self) -> None:
        """Who, what, where it belongs and what an answer needs."""
        message = self.take(
            b"From: Al <Alice@mail.test>\nTo: bot@mail.test, carol@mail.test\nSubject: Lunch\nMessage-ID: <q@x>\n"
            b"References: <r@x>\nReply-To: alice+al@mail.test\n\nShall we?\n"
        )

        assert (message.sender.address, message.sender.name, message.text) == (
            "alice@mail.test",
            "Al",
            "Shall we?",
        )
        assert message.audience == "group"
        route = MailRoute(
            uid=7,
            uidvalidity=3,
            message_id="<q@x>",
            references=("<r@x>",),
            evidence="not asked for",
            others_subject=True,
        )
        context = MessageContext(
            subject="Lunch",
            reply_to="alice+al@mail.test",
            also_to=("carol@mail.test",),
            proof=0,
            others_words=True,
        )
        assert message.context == context.with_route(route)

    def test_the_context_is_enough_for_an_answer(self) -> None:
        """What comes in goes back into the thread."""
        message = self.take(
            b"From: alice@mail.test\nTo: bot@mail.test\nSubject: Lunch\nMessage-ID: <q@x>\n\nhi\n"
        )
        mail = sent(row(context=message.context, session=message.session))

        assert (mail["In-Reply-To"], mail["Subject"], mail["To"]) == ("<q@x>", "Re: Lunch", "alice@mail.test")
        raw = compose(row(context=message.context, session=message.session), address=BOT, self_copy=True).raw
        assert isinstance(self.take(raw), OwnCopy)

    def test_texts_that_are_none(self) -> None:
        """A subject speaks for an empty mail; for one with a file nothing has to."""
        head = b"From: alice@mail.test\nTo: bot@mail.test\n"
        named = self.take(
            head
            + b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\nlook\n--b\nContent-Type: application/pdf; name=a.pdf\n\n"
            + b"x" * 12_000
            + b"\n--b--\n"
        )

        assert self.take(head + b"Subject: Only this\n\n").text == "Only this"
        assert self.take(head + b"\n").text == "(an empty mail)"
        assert named.text == "look"

    def test_no_message_id(self) -> None:
        """A mail without an id has an identity, a session, and an answer that threads to nothing."""
        raw = b"From: alice@mail.test\nTo: bot@mail.test\nSubject: s\n\nhi\n"
        message = self.take(raw)
        again = self.take(b"Received: somewhere else\n" + raw)

        assert message.native_id == again.native_id
        assert message.session == again.session
        assert sent(row(context=message.context))["In-Reply-To"] is None


class TestConfig:
    def test_a_usual_one(self) -> None:
        """Defaults, normal forms, and a password that is not shown."""
        config = EmailConfig.model_validate(settings())

        assert (config.address, config.imap.security, config.smtp.security) == (
            "bot@mail.test",
            "tls",
            "starttls",
        )
        assert (config.imap.port, config.smtp.port, config.batching) == (993, 587, "each")
        assert config.trusted_authserv_ids == ("mx.mail.test",)
        assert "secret-pw" not in repr(config)

    @rows(
        ("changes", "words"),
        [
            ({"oauth": {"provider": "google", "client_id": "x"}}, "not both"),
            ({"password": None}, "either password or oauth"),
            ({"password": None, "oauth": {"provider": "custom", "client_id": "x"}}, "needs token_endpoint"),
            (
                {
                    "oauth": {
                        "provider": "custom",
                        "client_id": "x",
                        "scope": "y",
                        "token_endpoint": "http://login.test/",
                    }
                },
                "must begin with https",
            ),
            ({"subaddress_secrets": [{"sender": "a@mail.test", "secret": "short"}]}, "16 to 60"),
            ({"subaddress_secrets": [{"sender": "nobody", "secret": "a" * 20}]}, "not a mail address"),
            ({"ingest_only_from": ["*"]}, "neither an address"),
            ({"ingest_only_from": ["a@*.test"]}, "neither an address"),
            ({"dns_servers": ["ns.mail.test"]}, "not the address of a DNS server"),
            ({"dns_servers": ["127.0.0.1:x"]}, "has no port"),
            ({"answered_keyword": "two words"}, "match pattern"),
            ({"imap": {"host": "mail.test", "security": "none"}}, "in the clear"),
            ({"smtp": {"host": "10.0.0.1", "security": "none"}}, "in the clear"),
            ({"smtp": {"host": "h", "port": 0}}, "greater than or equal to 1"),
            ({"address": "bot"}, "not a mail address"),
            ({"trusted_authserv_ids": []}, "trusted_authserv_ids"),
            ({"adress": "x"}, "Extra inputs"),
            ({"limits": {"sender_per_hour": -1}}, "greater than or equal to 0"),
            ({"batching": "all"}, "merge"),
        ],
    )
    def test_mistakes_are_named(self, changes: dict[str, Any], words: str) -> None:
        """What cannot work is said at once, with the remedy."""
        with pytest.raises(ValidationError) as caught:
            EmailConfig.model_validate(settings(**changes))

        assert words in str(caught.value)
        assert "secret-pw" not in str(caught.value)

    def test_this_machine_may_do_without_tls(self) -> None:
        """Loopback is not the network; verification off needs no trusted servers."""
        for host in ("localhost", "127.0.0.1", "::1"):
            EmailConfig.model_validate(settings(imap={"host": host, "security": "none"}))
        EmailConfig.model_validate(settings(trusted_authserv_ids=[], sender_verification="off"))
