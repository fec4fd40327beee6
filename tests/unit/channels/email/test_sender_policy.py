"""Who wrote a mail, what proves it, and when a mail is not answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from channels.email.parse.mime import Headers
from channels.email.trust.auth_results import AuthResults, MethodResult, Word, parse_auth_results, verdict_of
from channels.email.trust.sender_policy import MailRefused, OwnIdentity, SenderVerdict, inspect, open_question
from tests.rows import rows

OWN = OwnIdentity("bot@mail.test", ("mx.mail.test",))

PROOF = ("authentication-results", "mx.mail.test; dmarc=pass header.from=mail.test")

PLAIN = (PROOF, ("from", "Alice <alice@mail.test>"), ("to", "bot@mail.test"), ("subject", "Hello"))


def look(*more: tuple[str, str], without: str = "", **how: bool) -> SenderVerdict:
    fields = (*(item for item in PLAIN if item[0] != without), *more)
    return inspect(Headers(fields), OWN, **how)


class TestEvidence:
    @rows(
        ("value", "verified"),
        [
            ("mx.mail.test; dmarc=pass header.from=mail.test", True),
            ("mx.mail.test 1; spf=none; dmarc=pass (p=REJECT) header.from=mail.test; dkim=fail", True),
            ("MX.Mail.Test; DMARC=Pass (ok) action=none header.from=Mail.Test", True),
            (
                "mx.mail.test; spf=pass smtp.mailfrom=bounce+a=b@x.test; dmarc=pass header.from=mail.test",
                True,
            ),
            ('mx.mail.test; dmarc=pass reason="a; dmarc=fail" header.from=mail.test', True),
            (
                "mx.mail.test (evil; dmarc=pass header.from=mail.test); dmarc=fail header.from=mail.test",
                False,
            ),
            ("mx.mail.test; spf=pass (x; dmarc=pass header.from=mail.test)", False),
            ('mx.mail.test; spf=pass reason="; dmarc=pass header.from=mail.test"', False),
            ("mx.mail.test; dmarc=pass header.from=evil.test", False),
            ("mx.mail.test; dmarc=pass header.from=evil.test header.from=mail.test", False),
            ("mx.mail.test; dmarc=pass header.from=mail.test; dmarc=fail header.from=mail.test", False),
            ("mx.mail.test; dmarc=pass", False),
            ("mx.mail.test; dmarc=none header.from=mail.test", False),
            ("mx.mail.test; dmarc=pass header.from=mail.test (no end", False),
            ('mx.mail.test; dmarc=pass header.from="mail.test', False),
            ("mx.mail.test dmarc=pass header.from=mail.test", False),
            ("evil.test; dmarc=pass header.from=mail.test", False),
            ("dmarc=pass header.from=mail.test", False),
            ("mx.mail.test; none", False),
            ("", False),
        ],
    )
    def test_only_a_pass_for_the_domain_counts(self, value: str, verified: bool) -> None:
        """Comments, quoted strings, other domains and broken fields prove nothing."""
        found = verdict_of([value], trusted=("mx.mail.test",), domain="mail.test")
        assert (found.word is Word.VERIFIED) == verified
        assert found.server == "mx.mail.test" or not verified

    def test_the_topmost_field_of_the_trusted_server_decides(self) -> None:
        """A forged pass below a fail is nothing; foreign fields above do not matter, unreadable ones do."""
        good, bad = PROOF[1], "mx.mail.test; dmarc=fail header.from=mail.test"

        def verified(*fields: str) -> bool:
            told = verdict_of(fields, trusted=("mx.mail.test",), domain="mail.test")
            return told.word is Word.VERIFIED

        assert verified(good, bad)
        assert not verified(bad, good)
        assert verified("other.test; spf=pass", good)
        assert not verified("(((", good)

    @rows(
        ("value", "word"),
        [
            ("mx.mail.test; dkim=pass header.d=mail.test", Word.VERIFIED),
            ("mx.mail.test; dkim=pass header.i=@mail.test header.s=x", Word.VERIFIED),
            ("mx.mail.test; dmarc=none header.from=mail.test; dkim=pass header.d=mail.test", Word.VERIFIED),
            ("mx.mail.test; dmarc=fail header.from=mail.test; dkim=pass header.d=mail.test", Word.DENIED),
            ("mx.mail.test; dkim=pass header.d=test", Word.SILENT),
            ("mx.mail.test; dkim=pass header.d=evil.mail.test", Word.SILENT),
            ("mx.mail.test; dkim=pass header.d=il.test", Word.SILENT),
            ("mx.mail.test; dkim=pass header.d=mail.test header.d=evil.test", Word.SILENT),
            ("mx.mail.test; dkim=pass header.d=mail.test header.i=@evil.test", Word.SILENT),
            ("mx.mail.test; dkim=fail header.d=mail.test; dkim=pass header.d=list.test", Word.SILENT),
            ("mx.mail.test; dkim=none; spf=pass smtp.mailfrom=mail.test", Word.SILENT),
            ("mx.mail.test; arc=pass (i=1 dmarc=pass fromdomain=mail.test)", Word.SILENT),
            ('""; dmarc=pass header.from=mail.test', Word.SILENT),
        ],
    )
    def test_without_dmarc_an_aligned_signature_counts(self, value: str, word: Word) -> None:
        """Of the very domain; SPF, other people's signatures, seals and a server without a name do not."""
        assert verdict_of([value], trusted=("mx.mail.test",), domain="mail.test").word is word

    def test_a_signature_of_the_domain_above(self) -> None:
        """Whoever owns the domain owns what is below it, and not the other way round."""
        field = "mx.mail.test; dkim=pass header.d=mail.test"
        assert verdict_of([field], trusted=("mx.mail.test",), domain="sub.mail.test").word is Word.VERIFIED

    def test_a_provider_that_leaves_its_name_out(self) -> None:
        """Microsoft's form counts only where the settings say so, and only on top."""
        field = (
            "spf=pass (sender IP is 192.0.2.1) smtp.mailfrom=mail.test; dkim=pass (signature was verified) "
            "header.d=mail.test;dmarc=pass action=none header.from=mail.test;compauth=pass reason=100"
        )

        def word(*fields: str, headerless: bool = True) -> Word:
            return verdict_of(fields, trusted=(), domain="mail.test", headerless=headerless).word

        assert word(field) is Word.VERIFIED
        assert word(field, headerless=False) is Word.SILENT
        assert word(field.replace("dmarc=pass", "dmarc=fail"), field) is Word.DENIED
        assert word("other.test; spf=pass", field) is Word.SILENT
        assert word(field.replace("=mail.test", "=evil.test")) is Word.DENIED

    @given(st.text(alphabet='ab=;()"\\ .\t', max_size=60))
    def test_total(self, value: str) -> None:
        """Any text can be read or not; nothing raises, and the server's name is in lower case."""
        parsed = parse_auth_results(value)
        assert parsed is None or parsed.authserv_id == parsed.authserv_id.lower()

    def test_what_is_read(self) -> None:
        """Methods with versions, results and properties."""
        assert parse_auth_results("mx; dkim/1=pass header.i=@A.test header.b=ab+/=; none") == AuthResults(
            "mx", (MethodResult("dkim", "pass", (("header.i", "@a.test"), ("header.b", "ab+/="))),)
        )


class TestVerdict:
    def test_a_person(self) -> None:
        """Proven, for us, not automatic: to be answered, where the sender is."""
        assert look() == SenderVerdict(
            "alice@mail.test",
            "Alice",
            verified=True,
            reply_to="alice@mail.test",
            authentication="told by mx.mail.test",
        )

    @rows(
        ("name", "value", "reason"),
        [
            ("auto-submitted", "auto-generated; owner-email=x", MailRefused.AUTOMATIC),
            ("auto-submitted", " Auto-Replied", MailRefused.AUTOMATIC),
            ("precedence", "Bulk", MailRefused.AUTOMATIC),
            ("list-post", "<mailto:x@y>", MailRefused.MAILING_LIST),
            ("list-id", "x", MailRefused.MAILING_LIST),
            ("return-path", "<>", MailRefused.BOUNCE),
            ("return-path", " <> ", MailRefused.BOUNCE),
            ("content-type", "multipart/report; report-type=delivery-status", MailRefused.BOUNCE),
            ("message-id", "<squidbot.{}.{}@mail.test>".format("a" * 24, "b" * 24), MailRefused.AUTOMATIC),
            ("from", "Mallory <mallory@evil.test>", MailRefused.NO_SENDER),
        ],
    )
    def test_programs_get_no_answer(self, name: str, value: str, reason: MailRefused) -> None:
        """One telling field is enough."""
        assert look((name, value)).refused is reason

    @rows(
        ("name", "value"),
        [
            ("auto-submitted", "no"),
            ("precedence", "first-class"),
            ("x-auto-response-suppress", "DR, RN, NRN, OOF, AutoReply"),
            ("list-unsubscribe", "<mailto:x@y>"),
            ("x-autoreply", "no"),
            ("x-loop", "alice@mail.test"),
            ("return-path", "<a@b>"),
        ],
    )
    def test_people_may_use_these_fields_too(self, name: str, value: str) -> None:
        """The harmless values of the same fields."""
        assert look((name, value)).refused is None

    @rows("sender", ["MAILER-DAEMON", "postmaster", "no-reply", "noreply+x", "bounces-12", "autoreply"])
    def test_the_name_of_an_address_makes_no_robot(self, sender: str) -> None:
        """Who reads the mail at such an address may be the owner; fields and the null sender decide."""
        assert look(("from", f"{sender}@mail.test"), without="from").refused is None
        bounce = (("from", f"{sender}@mail.test"), ("return-path", "<>"))
        assert look(*bounce, without="from").refused is MailRefused.BOUNCE

    def test_our_own_mail(self) -> None:
        """With our id and address it is a copy; with our address alone, tagged or not, it is refused."""
        own_id = ("message-id", f"<squidbot.{'a' * 24}.{'b' * 24}@mail.test>")
        me = ("from", "Bot+x@mail.test")

        assert look(me, own_id, without="from").refused is MailRefused.OWN_COPY
        assert look(me, without="from").refused is MailRefused.OWN_ADDRESS

    def test_without_proof_there_is_an_address_and_no_trust(self) -> None:
        """The claimed address is known, is not verified, and the mail is refused; unless proof is not asked for."""
        verdict = look(without="authentication-results")
        easy = inspect(Headers(PLAIN[1:]), OwnIdentity("bot@mail.test", authentication_needed=False))

        assert (verdict.address, verdict.verified, verdict.refused) == (
            "alice@mail.test",
            False,
            MailRefused.NOT_VERIFIED,
        )
        assert (easy.verified, easy.refused) == (True, None)

    def test_not_for_us(self) -> None:
        """Our address must be somewhere: To, Cc or where the server says that it delivered to."""
        assert look(("to", "carol@mail.test"), without="to").refused is MailRefused.NOT_ADDRESSED
        assert look(("cc", "x@y.test, Bot <BOT+tag@mail.test>"), without="to").refused is None
        assert look(("delivered-to", "bot+tag@mail.test"), without="to").refused is None

    @rows("subject", ["Automatic reply: Hello", "Out of Office", "Abwesend bis 3.1."])
    def test_the_words_of_a_subject_make_no_robot(self, subject: str) -> None:
        """Only a field says that a program has sent it (RFC 3834)."""
        field = ("subject", subject)
        assert look(field, without="subject").refused is None
        marked = look(field, ("auto-submitted", "auto-replied"), without="subject")
        assert marked.refused is MailRefused.AUTOMATIC

    def test_where_the_answer_goes(self) -> None:
        """Reply-To only within the sender's own domain."""
        assert look(("reply-to", "Al <other@mail.test>")).reply_to == "other@mail.test"
        assert look(("reply-to", "victim@evil.test")).reply_to == "alice@mail.test"
        assert look(("reply-to", "a@mail.test, b@mail.test")).reply_to == "alice@mail.test"
        assert look(("reply-to", "garbage")).reply_to == "alice@mail.test"

    def test_who_else_has_it(self) -> None:
        """Other people in To or Cc make it a group; our tagged address does not."""
        assert not look(("cc", "bot+x@mail.test")).others
        assert not look(("cc", "Alice@mail.test")).others
        assert look(("cc", "carol@mail.test")).others
        assert look(("cc", "alice+team@mail.test")).others, (
            "others may read along at the sender's plus address"
        )


SECRET = "s3cret-0123456789"


class TestOtherEvidence:
    @staticmethod
    def look(*more: tuple[str, str], without: str = "", proof: str = "") -> SenderVerdict:
        own = OwnIdentity("bot@mail.test", ("mx.mail.test",), subaddress_secrets={"alice@mail.test": SECRET})
        fields = (*(item for item in PLAIN[1:] if item[0] != without), *more)
        return inspect(Headers(fields), own, verification=proof)

    @rows("name", ["to", "cc", "delivered-to"])
    def test_a_secret_address_proves_the_one_who_was_given_it(self, name: str) -> None:
        """In whatever field the address stands, in any case; nobody else can use it."""
        there = (name, f"Bot <BOT+{SECRET.upper()}@mail.test>")
        assert self.look(there, without=name).authentication == "secret address"

        mallory = self.look(there, ("from", "mallory@mail.test"), without="from")
        assert not mallory.verified

    @rows("tag", ["", "+", "+s3cret-012345678", "+s3cret-0123456789x", "+wrong"])
    def test_a_wrong_tag_proves_nothing(self, tag: str) -> None:
        """Not one character may be missing."""
        verdict = self.look(("to", f"bot{tag}@mail.test"), without="to")
        assert (verdict.verified, verdict.refused) == (False, MailRefused.NOT_VERIFIED)

    def test_the_secret_is_not_shown(self) -> None:
        """Not even by a value that somebody logs."""
        assert SECRET not in repr(OwnIdentity("b@x.test", subaddress_secrets={"a@x.test": SECRET}))

    def test_a_proof_of_our_own(self) -> None:
        """It counts where the provider says nothing, and not against its word."""
        assert self.look(proof="signed by mail.test").verified
        denied = ("authentication-results", "mx.mail.test; dmarc=fail header.from=mail.test")
        assert not self.look(denied, proof="signed by mail.test").verified
        assert not self.look(denied, ("cc", f"bot+{SECRET}@mail.test")).verified

    def test_who_is_asked_about(self) -> None:
        """Only mails that would be answered if they were proven cost a look at DNS."""
        own = OwnIdentity("bot@mail.test", ("mx.mail.test",))

        def question(*more: tuple[str, str], fields: object = PLAIN[1:]) -> str | None:
            return open_question(Headers((*fields, *more)), own)

        assert question() == "alice@mail.test"
        assert question(fields=PLAIN) is None
        assert question(("auto-submitted", "auto-replied")) is None
        assert question(("from", "b@x.test")) is None
        assert question(fields=(("from", "a@x.test"), ("to", "other@x.test"))) is None
        assert question(("authentication-results", "mx.mail.test; dmarc=fail")) is None
