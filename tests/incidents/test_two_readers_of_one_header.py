"""
Mallory has an account at Alice's provider. Her mail showed ``From: mallory`` to the provider's server, which
vouched for it, and ``From: alice`` to us: line ends that only one of two programs sees, and a second address
where the name should be. So she spoke as the owner and got the answer's memory.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from channels.email.config import MailAnswerLimits
from channels.email.parse.mail_addresses import AddressInvalid, parse_mailboxes
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.mail_config import email_config

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VOUCHED = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n"
MALLORY, ALICE = "From: mallory@mail.test", "From: alice@mail.test"
TO = "To: bot@mail.test"


def taken(raw: str) -> tuple[str, bool, bool]:
    """Who the sender is taken for, whether that is proven, and whether the mail is to be answered."""
    config = email_config()
    intake = MailIntake("email", config, AnswerLimiter(MailAnswerLimits()))
    message = intake.convert(read_arrival(1, NOW, raw.encode(), whole=True), uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    return message.sender.address, message.sender.verified, message.addressed


@pytest.mark.parametrize(
    "header",
    [
        f"X: 1\r{ALICE}\r{TO}\r\rwho am I?\r\n{MALLORY}\r\n{TO}\r\n",
        f"X: 1\n{ALICE}\n{TO}\n\nwho am I?\r\n{MALLORY}\r\n{TO}\r\n",
        f"{ALICE}\r\n{TO}\r\n\nwho am I?\r\n{MALLORY}\r\n",
        f"{ALICE}\r\n{TO}\r\n\0\r\nwho am I?\r\n{MALLORY}\r\n",
        f"Fr\0om: alice@mail.test\r\n{MALLORY}\r\n{TO}\r\n",
        f"X: 1\rAuthentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n{MALLORY}\r\n{TO}\r\n",
    ],
    ids=["carriage returns", "line feeds", "blank line", "NUL line", "NUL in a name", "the word itself"],
)
def test_where_lines_end_is_not_a_matter_of_taste(header: str) -> None:
    """A header that can be read in two ways has no sender, and nothing in it is proven or answered."""
    address, verified, addressed = taken(VOUCHED + header + "\r\nwho am I?\r\n")

    assert "alice" not in address
    assert (verified, addressed) == (False, False)


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_a_header_with_one_kind_of_line_end_is_fine(end: str) -> None:
    """What mail servers really send is not refused; carriage returns in the text do no harm."""
    lines = [VOUCHED.strip(), ALICE, TO, "Subject: a", " b", "", "one\rtwo", ""]

    assert taken(end.join(lines)) == ("alice@mail.test", True, True)


@pytest.mark.parametrize("odd", ["X: a\rb\r\n", "Subject: a\0b\r\n", "X: a\nY: b\r\n"])
def test_oddities_that_hide_nobody_are_borne(odd: str) -> None:
    """Who the sender is does not depend on them, so nobody's mail is refused for its broken mail program."""
    mail = VOUCHED + odd + f"{ALICE}\r\n{TO}\r\n\r\nwho am I?\r\n"

    assert taken(mail) == ("alice@mail.test", True, True)


def test_a_server_that_mixes_line_ends_is_borne() -> None:
    """Its own fields end in two characters, what it was handed in one: only one reading has a sender at all."""
    mail = "Return-Path: <alice@mail.test>\r\n" + f"{VOUCHED.strip()}\n{ALICE}\n{TO}\n\nwho am I?\n"

    assert taken(mail) == ("alice@mail.test", True, True)


@pytest.mark.parametrize(
    "value",
    [
        "mallory@mail.test <alice@mail.test>",
        "mallory@mail.test\t<alice@mail.test>,",
        'x <alice@mail.test> "mallory@mail.test"',
    ],
)
def test_of_two_addresses_none_is_taken(value: str) -> None:
    """Programs disagree which of them is the sender, so there is none."""
    with pytest.raises(AddressInvalid):
        parse_mailboxes(value)


@pytest.mark.parametrize("value", ["alice@mail.test <alice@mail.test>", '"Al @ home" <alice@mail.test>'])
def test_an_address_as_its_own_name_is_fine(value: str) -> None:
    """Many programs write the address where no name is known."""
    [mailbox] = parse_mailboxes(value)

    assert mailbox.address == "alice@mail.test"
