"""Addresses in header fields: plain mailboxes in normal form, and anything else is nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.email.parse.mail_addresses import AddressInvalid, MailboxAddress, normalise, parse_mailboxes
from tests.rows import rows


class TestAddresses:
    @rows(
        ("value", "expected"),
        [
            ("alice@mail.test", [MailboxAddress("", "alice@mail.test")]),
            ("Alice (the (real) one) <Alice@MAIL.test>", [MailboxAddress("Alice", "alice@mail.test")]),
            (
                '"bob@x.test, <evil@x.test>" <alice@mail.test>',
                [MailboxAddress("bob@x.test, <evil@x.test>", "alice@mail.test")],
            ),
            ("a@x.test, b@x.test", [MailboxAddress("", "a@x.test"), MailboxAddress("", "b@x.test")]),
            ("(comment only)", []),
        ],
    )
    def test_plain_mailboxes(self, value: str, expected: list[MailboxAddress]) -> None:
        """Names, comments and quoting are understood; the address is in normal form."""
        assert parse_mailboxes(value) == expected

    @rows(
        "value",
        [
            "alice",
            "a@b@c.test",
            "<a@x.test> <b@x.test>",
            "<a@x.test> b",
            "friends: a@x.test, b@x.test;",
            '"no end <a@x.test>',
            "(no end <a@x.test>",
            "<a@x.test",
            "a\x00@x.test",
            "=?utf-8?q?alice=40mail.test?=",
            "=?utf-8?q?alice?=@mail.test",
            "<@route.test:alice@mail.test>",
            "alice@\uff4dail.test",
            "alice@boo\u212a.test",
            "älice@mail.test",
            "alice@mail..test",
            '"alice@"mail.test',
            '"alice"@mail.test',
            'ali""ce@mail.test',
            '""alice@mail.test',
            'alice@mail.test""',
            'alice@""mail.test',
            "ali(x)ce@mail.test",
            "alice@(x)mail.test",
            "(" * 5000 + "alice@mail.test",
        ],
    )
    def test_anything_else_is_nobody(self, value: str) -> None:
        """What is not a list of plain mailboxes is an error, whatever a lenient parser would make of it."""
        with pytest.raises(AddressInvalid):
            parse_mailboxes(value)

    @given(st.text(alphabet='ab@.<>(),";:\\ \x00=?', max_size=40))
    def test_total_and_in_normal_form(self, value: str) -> None:
        """Any text gives mailboxes or our error, and normal forms stay as they are."""
        try:
            found = parse_mailboxes(value)
        except AddressInvalid:
            return
        assert all(normalise(box.address) == box.address for box in found)
