"""What IMAP looks like on the wire, read and written."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.email.imap.imap_syntax import (
    MAX_LINE_BYTES,
    Fetched,
    Folder,
    ResponseReader,
    WireError,
    parse_fetch,
    parse_list,
    quote,
    response_code,
    uid_set,
)

STREAM = (
    b"* OK hello {5}\r\n"
    b"* 1 FETCH (UID 3 BODY[] {12}\r\nab\r\n* 2 FET\n) FLAGS (\\Seen) BODY[HEADER] {0}\r\n)\r\n"
    b"\r\n"
    b'* LIST () "/" {5}\r\na * b\r\n'
    b"+ go on\n"
    b"A1 OK done\r\n"
)
RESPONSES = [
    (b"* OK hello {5}",),
    (b"* 1 FETCH (UID 3 BODY[] ", b"ab\r\n* 2 FET\n", b") FLAGS (\\Seen) BODY[HEADER] ", b"", b")"),
    (b'* LIST () "/" ', b"a * b", b""),
    (b"+ go on",),
    (b"A1 OK done",),
]


class TestResponseReader:
    @given(st.lists(st.integers(0, len(STREAM))))
    def test_pieces_do_not_matter(self, cuts: list[int]) -> None:
        """However the stream is cut into pieces, the responses are the same."""
        reader = ResponseReader()
        places = [0, *sorted(cuts), len(STREAM)]
        found = [
            response
            for start, end in itertools.pairwise(places)
            for response in reader.feed(STREAM[start:end])
        ]

        assert found == RESPONSES

    @given(st.lists(st.binary(max_size=200), max_size=8))
    def test_any_bytes_give_responses_or_our_error(self, pieces: list[bytes]) -> None:
        """Garbage never raises anything else, and no response is empty."""
        reader = ResponseReader()
        try:
            for piece in pieces:
                assert all(response and response != (b"",) for response in reader.feed(piece))
        except WireError:
            pass

    def test_the_measure_is_limited(self) -> None:
        """A line or literal beyond every measure is an error, not memory."""
        with pytest.raises(WireError):
            list(ResponseReader().feed(b"x" * (MAX_LINE_BYTES + 1)))
        with pytest.raises(WireError):
            list(ResponseReader().feed(b"* 1 FETCH (BODY[] {99999999999}\r\n"))


class TestParseFetch:
    @pytest.mark.parametrize(
        "response",
        [
            (
                b'* 7 FETCH (UID 3 RFC822.SIZE 12 INTERNALDATE "17-Jul-1996 02:44:25 -0700" BODY[] ',
                b"x)y",
                b")",
            ),
            (
                b"* 7 fetch (BODY[] ",
                b"x)y",
                b' internaldate "17-JUL-1996 09:44:25 +0000" rfc822.size 12 uid 3)',
            ),
            (b'* 7 FETCH (BODY[] "x)y" UID 3 RFC822.SIZE 12 INTERNALDATE "17-Jul-1996 09:44:25 +0000")',),
        ],
    )
    def test_items_in_any_order_and_form(self, response: tuple[bytes, ...]) -> None:
        """Literal or quoted, first or last: the same mail."""
        assert parse_fetch(response) == Fetched(
            7, uid=3, size=12, received_at=datetime(1996, 7, 17, 9, 44, 25, tzinfo=UTC), body=b"x)y"
        )

    def test_flags_and_nil(self) -> None:
        """FLAGS is a set, and a body of NIL is none."""
        found = parse_fetch(
            (b'* 7 FETCH (FLAGS (\\Seen $Done) BODY[HEADER.FIELDS (FROM "TO")]<0> NIL UID 9)',)
        )

        assert found == Fetched(7, uid=9, flags=frozenset({"\\Seen", "$Done"}))

    def test_what_is_no_fetch(self) -> None:
        """Other responses, and dates and numbers that are none, are None."""
        assert parse_fetch((b"* 7 EXISTS",)) is None
        assert parse_fetch((b'* 7 FETCH (UID x INTERNALDATE "31-Feb-2026 00:00:00 +0000")',)) == Fetched(7)

    @given(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
    def test_total(self, parts: list[bytes]) -> None:
        """No response raises."""
        parse_fetch((b"* 1 FETCH (" + parts[0], *parts[1:]))
        parse_list((b"* LIST () " + parts[0], *parts[1:]))


def test_folders() -> None:
    """Names may be quoted, plain or literal; attributes are compared without case."""
    assert parse_list((b'* LIST (\\HasNoChildren \\Sent) "." "Sent \\"x\\" * y"',)) == Folder(
        'Sent "x" * y', frozenset({"\\hasnochildren", "\\sent"}), 'Sent "x" * y', "."
    )
    assert parse_list((b"* LIST () NIL INBOX",)) == Folder("INBOX", frozenset(), "INBOX", "")
    assert parse_list((b'* LIST () "/" ', b"a (b", b"")) == Folder("a (b", frozenset(), "a (b", "/")
    assert parse_list((b'* LIST () "/" Entw&APw-rfe',)) == Folder(
        "Entwürfe", frozenset(), "Entw&APw-rfe", "/"
    )
    assert parse_list((b"* OK",)) is None


def test_small_things() -> None:
    """Response codes, quoting and sets of numbers."""
    assert response_code(b"* OK [UIDNEXT 7] next", "UIDNEXT") == "7"
    assert response_code(b"NO [UNAVAILABLE] later", "unavailable") == ""
    assert response_code(b"* OK next", "UIDNEXT") is None
    assert quote('a "b" \\c') == '"a \\"b\\" \\\\c"'
    with pytest.raises(ValueError, match="control"):
        quote("a\r\nb")
    assert uid_set([5, 1, 2, 3, 9, 8, 5]) == "1:3,5,8:9"
