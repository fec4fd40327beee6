"""
An answer to the owner was made from her own memory although a second person had got her mail and would get the
thread: Cc named him in a spelling that a pattern for addresses does not find. Who has got a mail is read with
the grammar of addresses now, and what cannot be read is taken for somebody else.
"""

from __future__ import annotations

from datetime import UTC, datetime

from agent_core.memory.scopes import OWNER, scope_for
from agent_core.messages import Audience, InboundMessage
from channels.email.config import MailAnswerLimits
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.mail_config import email_config
from tests.rows import rows

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEAD = (
    "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\nFrom: Alice <alice@mail.test>\r\n"
)
TO = "To: bot@mail.test"


def taken(header: bytes | str, **changes: object) -> InboundMessage:
    config = email_config(**changes)
    header = header if isinstance(header, bytes) else header.encode()
    raw = HEAD.encode() + header + b"\r\n\r\nwhat did I tell you?\r\n"
    intake = MailIntake("email", config, AnswerLimiter(MailAnswerLimits()))
    message = intake.convert(read_arrival(1, NOW, raw, whole=True), uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    assert message.addressed
    assert message.sender.verified
    return message


def is_private(header: bytes | str) -> bool:
    """Whether the answer is made from the owner's memory."""
    message = taken(header)
    scope = scope_for(
        message.session,
        message.audience,
        sender_is_owner=True,
        sender_address=message.sender.address,
        sender_verified=message.sender.verified,
    )
    assert (scope == OWNER) == (message.audience is Audience.DIRECT)
    return scope == OWNER


SPELLINGS = {
    "plain": "Cc: bob@evil.test",
    "quoted local part": 'Cc: "bob"@evil.test',
    "quoted with a blank": 'Cc: "bob b"@evil.test',
    "domain literal": "Cc: bob@[192.0.2.1]",
    "IPv6 literal": "Cc: bob@[IPv6:2001:db8::1]",
    "comment": "Cc: bob(a)@evil.test",
    "comment behind": "Cc: bob@(a)evil.test",
    "blanks": "Cc: bob @ evil.test",
    "blanks between labels": "Cc: bob@evil . test",
    "folded": "Cc:\r\n bob@\r\n evil.test",
    "no ASCII before the @": "Cc: bøb@evil.test",
    "no ASCII behind it": "Cc: bob@böse.test",
    "no ASCII at all": "Cc: боб@пример.test",
    "encoded word": "Cc: =?utf-8?q?bob=40evil.test?=",
    "encoded in angles": "Cc: Bob <=?utf-8?q?bob?=@evil.test>",
    "group": "Cc: us: bob@evil.test;",
    "group of nobody": "Cc: undisclosed-recipients:;",
    "route": "Cc: <@hop.test:bob@evil.test>",
    "semicolons": "Cc: alice@mail.test; bob@evil.test",
    "two in one": "Cc: bob@evil.test <alice@mail.test>",
    "no domain": "Cc: bob",
    "no end": 'Cc: "bob',
    "long local part": f"Cc: {'b' * 65}@evil.test",
    "beyond the cap": f"Cc: {'alice@mail.test, ' * 1_000}bob@evil.test",
    "in To": 'To: "bob"@evil.test',
    "second Cc": 'Cc: alice@mail.test\r\nCC: "bob"@evil.test',
    "Bcc": "Bcc: bob@evil.test",
    "a list of the owner's": "Cc: alice+team@mail.test",
    "Resent-To": "Resent-To: bob@evil.test",
    "Resent-Cc": "Resent-Cc: bob@evil.test",
    "Apparently-To": "Apparently-To: bob@evil.test",
    "blank in front of the colon": "Cc \t: bob@evil.test",
    "many of them": f"Cc{' ' * 60}: bob@evil.test",
    "line ends that hide": "X: 1\n\r\nCc: bob@evil.test",
    "a NUL in the name": "C\0c: bob@evil.test",
}


@rows("spelling", list(SPELLINGS))
def test_whoever_else_is_named_is_there(spelling: str) -> None:
    """In every spelling that some mail program understands, or shows to a reader."""
    assert not is_private(f"{TO}\r\n{SPELLINGS[spelling]}")


def test_bytes_that_are_no_text() -> None:
    """Nor are they nobody."""
    assert not is_private(TO.encode() + b"\r\nCc: b\xf8b@evil.test")


@rows(
    "header",
    [
        TO,
        "To: Bot <BOT@Mail.Test>, Alice <alice@mail.test>",
        'To: "Bot, the one (of two)" <bot+work@mail.test> (hers)',
        f"{TO}\r\nCc: =?utf-8?q?J=C3=BCrgens_Alice?= <alice@mail.test>",
        f"{TO}\r\nCc: Jürgens Alice <alice@mail.test>",
        f"{TO}\r\nCc: ,\r\n\talice@mail.test,",
        f"{TO}\r\nBcc: ",
        "To: bot@mail.test,\n alice@mail.test",
    ],
)
def test_alone_with_the_bot(header: str) -> None:
    """The negative control: names, comments, tags and encoded words do not make a second person."""
    assert is_private(header)


def test_a_name_gets_no_copy() -> None:
    """With ``reply_all`` an answer goes to addresses of people who may write, not to what stands in a name."""
    listed = {"reply_all": True, "allow_from": ["alice@mail.test", "carol@mail.test"]}

    assert taken(f"{TO}\r\nCc: Carol <carol@mail.test>", **listed).context.cc == ("carol@mail.test",)
    assert not taken(f'{TO}\r\nCc: "carol@mail.test" <bob@evil.test>', **listed).context.cc
