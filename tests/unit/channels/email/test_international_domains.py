"""An address whose domain has other letters than ASCII is the same in both of its forms, wherever it stands."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from channels.email.parse.mail_addresses import AddressInvalid, find_addresses, normalise
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.mail_config import email_config
from tests.rows import rows

U, A = "bücher.example", "xn--bcher-kva.example"


@rows("in_mail", [U, A, "BÜCHER.example"])
@rows("entry", [f"alice@{U}", f"alice@{A}", f"*@{U}", f"*@{A}"])
@rows("proof", [U, A])
def test_both_forms_are_one_address(in_mail: str, entry: str, proof: str) -> None:
    """In From, in To, in the word of the provider and in the settings."""
    config = email_config(allow_from=[entry], address=f"bot@{U}")
    raw = (
        f"Authentication-Results: mail.test; dmarc=pass header.from={proof}\r\nFrom: alice@{in_mail}\r\n"
        f"To: bot@{in_mail}\r\nMessage-ID: <1@mail.test>\r\n\r\nHello"
    ).encode()
    intake = MailIntake("email", config, AnswerLimiter(config.limits))
    found = intake.convert(read_arrival(1, datetime.now(UTC), raw, whole=True), uidvalidity=1)
    assert not isinstance(found, OwnCopy)
    assert found.addressed
    assert found.sender.verified
    assert found.sender.address == f"alice@{A}"
    assert intake.matching_pattern(found.sender.address) == (f"*@{A}" if entry.startswith("*") else "")


@rows("entry", ["@alice:mail.test", "älice@mail.test", "alice@mail test", "*@-bad-.test"])
def test_an_entry_that_can_match_nobody_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match="allow_from"):
        email_config(allow_from=[entry])


def test_another_domain_is_another() -> None:
    """The control: letters that look alike are not the same, and what is no domain is nobody's."""
    assert normalise("a@bucher.example") != normalise(f"a@{U}")
    assert find_addresses(f"<a@{U}>") == {f"a@{A}"}
    with pytest.raises(AddressInvalid):
        normalise("a@b\u2044c.example")
