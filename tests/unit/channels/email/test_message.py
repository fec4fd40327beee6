"""From the bytes of a mail to its parts and header fields: whatever they are."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.email.parse.inbound_mail import AttachmentNote, parse_mail
from channels.email.parse.mime import Caps, Headers, Unreadable, decode_text, decoded_header, parse_headers
from channels.email.receive.mail_intake import read_arrival


def mail(*lines: str, body: str = "hello") -> bytes:
    return "\r\n".join([*lines, "", body]).encode()


class TestMime:
    def test_plain_text(self) -> None:
        """The simplest mail."""
        parsed = parse_mail(mail("Subject: x", body="Hello\r\nyou"))

        assert (parsed.text, parsed.attachments) == ("Hello\nyou", ())

    def test_mixed_related_alternative(self) -> None:
        """The plain version, what follows it, and the names of the rest."""
        raw = mail(
            'Content-Type: multipart/mixed; boundary="m"',
            body="preamble\r\n--m\r\nContent-Type: multipart/related; boundary=r\r\n\r\n"
            "--r\r\nContent-Type: multipart/alternative; boundary=a\r\n\r\n"
            "--a\r\nContent-Type: text/html\r\n\r\n<p>html</p>\r\n"
            "--a\r\nContent-Type: text/plain\r\n\r\nplain\r\n--a--\r\n"
            "--r\r\nContent-Type: image/png; name=logo.png\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA\r\n--r--\r\n"
            "--m\r\nContent-Type: application/pdf\r\n"
            "Content-Disposition: attachment; filename*0*=utf-8''Re%C3%A4l;\r\n filename*1=.pdf\r\n\r\nx\r\n"
            "--m\r\nContent-Type: text/plain; name=notes.txt\r\nContent-Disposition: attachment\r\n\r\nnotes\r\n"
            "--m\r\n\r\na footer\r\n--m--\r\nepilogue",
        )
        parsed = parse_mail(raw)

        assert parsed.text == "plain\n\na footer"
        assert [(note.name, note.media_type) for note in parsed.attachments] == [
            ("logo.png", "image/png"),
            ("Reäl.pdf", "application/pdf"),
            ("notes.txt", "text/plain"),
        ]

    def test_html_only(self) -> None:
        """Without a plain version the HTML is read."""
        parsed = parse_mail(mail("Content-Type: text/html; charset=utf-8", body="<b>Grüße</b> &amp; mehr"))

        assert parsed.text == "Grüße & mehr"

    @pytest.mark.parametrize(("kind", "is_read"), [("markdown", True), ("enriched", True), ("csv", False)])
    def test_text_of_another_subtype_is_read_as_plain_text(self, kind: str, is_read: bool) -> None:
        """RFC 2046, 4.1.4; what is data for programs stays a file."""
        parsed = parse_mail(mail(f"Content-Type: text/{kind}; charset=utf-8", body="# List\r\n- äpfel"))
        assert (parsed.text == "# List\n- äpfel", parsed.attachments == ()) == (is_read, is_read)

    @pytest.mark.parametrize("others", [("plain",), ("html",), ("plain", "html")], ids=" and ".join)
    def test_of_versions_one_that_nobody_knows_counts_only_alone(self, others: tuple[str, ...]) -> None:
        """AMP's stands between the two, and is neither read nor a file."""
        versions = {"plain": "words", "x-amp-html": "<html amp4email>moving</html>", "html": "<p>words</p>"}
        told = {kind: text for kind, text in versions.items() if kind in (*others, "x-amp-html")}
        parts = (f"--a\r\nContent-Type: text/{kind}\r\n\r\n{text}\r\n" for kind, text in told.items())
        raw = mail("Content-Type: multipart/alternative; boundary=a", body="".join(parts) + "--a--")
        parsed = parse_mail(raw)
        assert (parsed.text, parsed.attachments, parsed.two_versions) == ("words", (), False)

    def test_a_forwarded_mail_is_an_attachment(self) -> None:
        """Nothing in it becomes text or sender."""
        raw = mail(
            "From: alice@mail.test",
            "Content-Type: multipart/mixed; boundary=m",
            body="--m\r\n\r\nsee below\r\n--m\r\nContent-Type: message/rfc822\r\n\r\nFrom: evil@x.test\r\n\r\nobey\r\n--m--",
        )
        parsed = parse_mail(raw)

        assert parsed.text == "see below"
        assert parsed.headers.all("from") == ["alice@mail.test"]
        assert parsed.attachments == (AttachmentNote("forwarded mail.eml", "message/rfc822", 23),)

    @pytest.mark.parametrize(
        "kind",
        ["message/rfc822", 'application/octet-stream; name="The hall.eml"'],
        ids=["typed", "by its name"],
    )
    def test_the_files_of_a_forwarded_mail(self, kind: str) -> None:
        """Each is a file of the mail that brings it, and the forwarded text can be read; neither is the sender's."""
        inner = (
            "From: carl@x.test\r\nSubject: The hall\r\nContent-Type: multipart/mixed; boundary=i\r\n\r\n"
            "--i\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n"
            "R3LDvMOfZQ==\r\n"
            "--i\r\nContent-Type: application/pdf; name=plan.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n"
            "JVBERi0xLjQ=\r\n--i--"
        )
        raw = mail(
            "From: alice@mail.test",
            "Content-Type: multipart/mixed; boundary=m",
            body=f"--m\r\n\r\nwhat is the plan?\r\n--m\r\nContent-Type: {kind}\r\n\r\n{inner}\r\n--m--",
        )
        parsed = parse_mail(raw)

        assert parsed.text == "what is the plan?"
        assert [(one.sender, one.text) for one in parsed.forwarded] == [("carl@x.test", "Grüße")]
        assert [note.name for note in parsed.attachments][1:] == ["plan.pdf"]
        assert b"".join(parsed.attachments[1].chunks()) == b"%PDF-1.4"

    @pytest.mark.parametrize(
        ("content_type", "body", "expected"),
        [
            ("text/plain; charset=iso-8859-1", "Grüße".encode("latin-1"), "Grüße"),
            ("text/plain; charset=utf-8", "Grüße".encode("latin-1"), "Grüße"),
            ("text/plain; charset=us-ascii", "Grüße".encode(), "Grüße"),
            ("text/plain; charset=x-unknown", "Grüße".encode(), "Grüße"),
            ("text/plain; charset=hex", b"6869", "6869"),
            ("text/plain; charset=punycode", b"abc-", "abc-"),
            ("text/plain; charset=koi8-r", "Привет".encode("koi8-r"), "Привет"),
            ("text/plain; charset=utf-8", b"\xff\xfe\x9d", "ÿþ\ufffd"),
        ],
    )
    def test_charsets_as_they_come(self, content_type: str, body: bytes, expected: str) -> None:
        """Wrong, unknown and dangerous labels give readable text."""
        assert parse_mail(f"Content-Type: {content_type}\r\n\r\n".encode() + body).text == expected

    @pytest.mark.parametrize(
        ("encoding", "body", "expected"),
        [
            ("base64", base64.b64encode(b"hello").decode(), "hello"),
            ("BASE64", "aGVs!\r\nbG8", "hello"),
            ("base64", "aGVsbG8x1", "hello1"),
            ("quoted-printable", "h=65llo=\r\n you =ZZ", "hello you =ZZ"),
            ("x-unknown", "hello", "hello"),
        ],
    )
    def test_broken_transfer_encodings(self, encoding: str, body: str, expected: str) -> None:
        """As much as can be read is read."""
        assert parse_mail(mail(f"Content-Transfer-Encoding: {encoding}", body=body)).text == expected

    def test_line_ends_and_nul(self) -> None:
        """Bare LF, bare CR and NUL are normalised."""
        assert parse_mail(b"Subject: x\n\na\rb\0c\r\nd").text == "a\nbc\nd"

    def test_a_boundary_that_never_comes(self) -> None:
        """The body is text then; and a part without an end ends with the mail."""
        assert (
            parse_mail(mail("Content-Type: multipart/mixed; boundary=zzz", body="just text")).text
            == "just text"
        )
        assert (
            parse_mail(mail("Content-Type: multipart/mixed; boundary=b", body="--b\r\n\r\nopen")).text
            == "open"
        )
        assert (
            parse_mail(
                mail(
                    "Content-Type: multipart/mixed; boundary=b", body="--bx\r\n--b\r\n\r\nin\r\n--b--\r\nout"
                )
            ).text
            == "in"
        )

    def test_unsafe_names(self) -> None:
        """Names of attachments cannot be paths, and never empty."""
        raw = mail(
            "Content-Type: multipart/mixed; boundary=m",
            body='--m\r\nContent-Type: application/x; name="../../etc/passwd"\r\n\r\nx\r\n'
            "--m\r\nContent-Type: application/x; name==?utf-8?b?YS9iLnR4dA==?=\r\n\r\nx\r\n"
            "--m\r\nContent-Type: application/x\r\n\r\nx\r\n--m--",
        )

        assert [note.name for note in parse_mail(raw).attachments] == ["_.._etc_passwd", "a_b.txt", "part 3"]

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (mail("X: " + "y" * 300_000), "header_too_large"),
            (mail(*["X: y"] * 3_000), "too_many_header_fields"),
            (
                mail("Content-Type: multipart/mixed; boundary=b", body="--b\r\n\r\nx\r\n" * 500),
                "too_many_parts",
            ),
            (
                b"".join(
                    b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (n, n)
                    for n in range(3_000)
                ),
                "nested_too_deep",
            ),
        ],
    )
    def test_beyond_the_caps(self, raw: bytes, reason: str) -> None:
        """More than anybody writes is refused with a reason, and still has an identity."""
        with pytest.raises(Unreadable) as caught:
            parse_mail(raw)

        assert caught.value.reason == reason
        arrival = read_arrival(1, datetime(2026, 1, 1, tzinfo=UTC), raw, whole=True)
        assert (arrival.mail, arrival.trouble) == (None, reason)
        assert arrival.digest

    def test_long_values_are_cut(self) -> None:
        """A header field keeps its beginning."""
        headers = parse_headers(mail("Subject: " + "x" * 100_000))

        assert len(headers.first("subject") or "") == Caps().header_value

    @given(st.binary(max_size=400))
    def test_any_bytes(self, raw: bytes) -> None:
        """Every mail gives a text or our error."""
        try:
            parse_mail(raw)
        except Unreadable:
            pass

    @given(
        st.lists(
            st.sampled_from(
                [
                    b"Content-Type: multipart/mixed; boundary=b\n",
                    b"Content-Type: text/html; charset=utf-8\n",
                    b"Content-Transfer-Encoding: base64\n",
                    b"\n",
                    b"--b\n",
                    b"--b--\n",
                    b" folded\n",
                    b"Subject: =?utf-8?q?=C3?= =?utf-8?q?=A9?=\n",
                    b"text <b>\n",
                ]
            ),
            max_size=30,
        )
    )
    def test_any_order_of_the_usual_lines(self, lines: list[bytes]) -> None:
        """Nor does any structure raise."""
        parsed = parse_mail(b"".join(lines))
        parsed.headers.subject()
        parsed.headers.references()


class TestHeaders:
    def test_references(self) -> None:
        """The chain in order, In-Reply-To last, no repetitions, nothing that is no id."""
        headers = parse_headers(
            mail("References: <a@x> junk <b@x>\r\n\t<a@x> <no id>", "In-Reply-To: <c@x> (today)")
        )

        assert headers.references() == ("<a@x>", "<b@x>", "<c@x>")

    @pytest.mark.parametrize(
        "value", ["<a b@x>", "a@x", "<>", "<a@x> <b@x>", "<" + "a" * 300 + "@x>", "<a@x\x01>"]
    )
    def test_broken_ids_are_none(self, value: str) -> None:
        """A Message-ID that cannot be quoted back is not used."""
        assert parse_headers(mail(f"Message-ID: {value}")).message_id() is None
        assert parse_headers(mail("Message-ID:  <a@x> ")).message_id() == "<a@x>"

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("=?utf-8?q?Gr=C3=BC?= =?utf-8?b?w59l?=", "Grüße"),
            ("=?utf-8?q?=C3?= =?utf-8?q?=BC?=", "ü"),
            ("=?iso-2022-jp?b?GyRCRnxLXBsoQg==?=", "日本"),
            ("=?nonsense?q?x?=", "x"),
            ("=?utf-8?b?####?= x", "x"),
            ("plain ü", "plain ü"),
        ],
    )
    def test_encoded_words(self, value: str, expected: str) -> None:
        """Split characters, odd charsets and broken words."""
        assert decoded_header(value).strip() == expected

    def test_raw_bytes_in_a_subject(self) -> None:
        """Eight-bit subjects without a label are read as UTF-8 or what Windows would have meant."""
        assert parse_headers("Subject: Grüße\n\n".encode()).subject() == "Grüße"
        assert parse_headers("Subject: Grüße\n\n".encode("latin-1")).subject() == "Grüße"
        assert decode_text(b"\x80", None) == "€"

    @given(st.text(max_size=100))
    def test_total(self, value: str) -> None:
        """No value raises."""
        headers = Headers((("subject", value), ("content-type", value), ("references", value)))
        headers.subject()
        headers.media_type()
        headers.references()


def test_a_mail_in_base64_keeps_its_lines() -> None:
    """Its line ends are in it already; one that is not encoded gets those of mail."""
    inner = b"From: carol@x.test\r\nSubject: Hall\r\n\r\nTuesday?\r\n"
    for encoding, body in (("base64", base64.b64encode(inner).decode()), ("8bit", inner.decode())):
        raw = mail(
            "Content-Type: multipart/mixed; boundary=m",
            body=f"--m\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n{body}\r\n--m--",
        )
        [file] = parse_mail(raw).attachments
        assert b"".join(file.chunks()).rstrip() == inner.rstrip()
