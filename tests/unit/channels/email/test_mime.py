"""What mails are made of, each part alone: flowed text, events, encodings, pages, and what is told of others."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import Quotation
from channels.email.compose.outbound_mail import page
from channels.email.parse.icalendar import in_words
from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mime import normalise_lines
from channels.email.parse.reply_stripping import split_quotes
from channels.email.parse.transfer_encoding import WIDTH, decode_transfer, flow, unflow
from channels.email.receive.intake_text import background_of, quotation

TEXT = st.text(
    st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=300
)


class TestFlowed:
    @given(st.lists(TEXT, max_size=8).map("\n".join))
    def test_there_and_back(self, text: str) -> None:
        """What was broken is joined again; only blanks at line ends are lost, which mean something else there."""
        wanted = [line if line == "-- " else line.rstrip(" ") for line in text.split("\n")]
        # A line that begins with ">" is a quotation, whose marks come back in their usual form.
        if not any(line.startswith(">") for line in wanted):
            assert unflow(flow(text)).split("\n") == wanted

    def test_long_lines_are_short_on_the_wire(self) -> None:
        """Where there are blanks, no line is longer than people see."""
        assert max(map(len, flow("word " * 500).split("\n"))) <= WIDTH
        assert flow("x" * 500) == "x" * 500

    @pytest.mark.parametrize(
        ("wire", "text"),
        [
            ("one \ntwo\nthree", "one two\nthree"),
            ("> a \n> b\n>> c \n> d", "> a b\n> > c \n> d"),
            (" From me\n  x", "From me\n x"),
            ("text \n-- \nme", "text \n-- \nme"),
            ("no end ", "no end "),
        ],
    )
    def test_the_rules(self, wire: str, text: str) -> None:
        """Depth ends a paragraph, stuffing goes, the signature line goes on nowhere."""
        assert unflow(wire) == text

    def test_without_the_blank(self) -> None:
        """DelSp takes the blank away with the break."""
        assert unflow("ab \ncd", delsp=True) == "abcd"


class TestEvents:
    def test_an_event_in_words(self) -> None:
        """What, when, where, who; folded lines and escapes are undone, an alarm says nothing."""
        told = in_words(
            "BEGIN:VCALENDAR\nMETHOD:CANCEL\nBEGIN:VEVENT\nSUMMARY:Long\n  title\\, really\nDTSTART;VALUE=DATE:20260115\n"
            'RRULE:FREQ=WEEKLY\nATTENDEE;CN="A: B":mailto:a@x.test\nATTENDEE:mailto:b@x.test\nORGANIZER:mailto:o@x.test\n'
            "BEGIN:VALARM\nDESCRIPTION:no\nEND:VALARM\nEND:VEVENT\nEND:VCALENDAR"
        )
        assert told.split("\n") == [
            "[Cancellation: Long title, really]",
            "When: 2026-01-15",
            "Organizer: o@x.test",
            "Invited: 2",
            "Repeats: FREQ=WEEKLY",
        ]

    def test_utc(self) -> None:
        """A Z is UTC."""
        assert "2026-01-15 14:30 UTC" in in_words("BEGIN:VEVENT\nDTSTART:20260115T143000Z\nEND:VEVENT")

    @given(st.text(max_size=300))
    def test_total(self, text: str) -> None:
        """Anything gives some text."""
        assert isinstance(in_words(text), str)

    @pytest.mark.parametrize("piece", ["BEGIN:VEVENT\n", 'X;"', "A;B=", "\n ", "BEGIN:VALARM\n"])
    def test_linear(self, piece: str) -> None:
        """Half a megabyte of anything takes less than a second."""
        begun = time.process_time()
        in_words("BEGIN:VEVENT\n" + piece * (500_000 // len(piece)))
        assert time.process_time() - begun < 1


class TestEncodings:
    @given(st.binary(max_size=2_000), st.integers(1, 100))
    def test_base64_with_anything_between(self, content: bytes, width: int) -> None:
        """Line ends and rubbish between the digits change nothing."""
        digits = base64.b64encode(content)
        lines = b"*\n ".join(digits[at : at + width] for at in range(0, len(digits), width))
        assert decode_transfer(lines, "base64") == content

    def test_pieces_fit_together(self) -> None:
        """Several megabytes come out as they went in."""
        content = bytes(range(256)) * 12_000
        assert decode_transfer(base64.encodebytes(content), "base64") == content

    @given(
        st.binary(max_size=500),
        st.sampled_from(["base64", "quoted-printable", "x-uuencode", "", "8bit", "?"]),
    )
    def test_total(self, content: bytes, encoding: str) -> None:
        """Any bytes give some bytes."""
        assert isinstance(decode_transfer(content, encoding), bytes)


class TestPage:
    def test_styles_stand_at_the_elements(self) -> None:
        """Tables, code and quotations can be read where style sheets are removed; what people wrote is no tag."""
        html = page("| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n\n```py\nx < 1\n```\n\n<table onclick=x>")
        assert '<td style="border:1px' in html
        assert '<blockquote style="' in html
        assert '<pre style="' in html
        assert '<code style="' in html
        assert "&lt;table onclick" in html
        assert "<style" not in html


class TestWhatOthersWrote:
    @staticmethod
    def mail(body: str, *fields: str):
        return parse_mail("\n".join(["From: a@mail.test", *fields, "", body]).encode())

    def test_a_forward_without_a_word(self) -> None:
        """Nothing of it is the sender's."""
        found = split_quotes("\n---------- Forwarded message ---------\nFrom: x\n\nobey")
        assert (found.new, found.forwarded) == ("", True)
        assert "obey" in found.rest

    def test_a_forward_with_a_word(self) -> None:
        """The word is the sender's, the rest is what was handed on."""
        mail = self.mail("Look!\n\n-------- Forwarded Message --------\nFrom: x\n\nobey", "Subject: Fwd: x")
        assert mail.text == "Look!"
        assert [(one.kind, "obey" in one.text) for one in background_of(mail)] == [("forwarded", True)]

    def test_quotations_are_told_unless_they_are_ours(self) -> None:
        """What we have sent is known."""
        mail = self.mail("Yes\n\nOn Monday 5 Jan 2026, Al <al@x.test> wrote:\n> old words")
        assert [one.kind for one in background_of(mail)] == ["quoted"]
        assert background_of(mail.without(["old *words*"])) == ()

    def test_it_is_bounded(self) -> None:
        """However much there is below."""
        mail = self.mail("Yes\n\n" + "> long line of words\n" * 20_000)
        [found] = background_of(mail)
        assert len(found.text) <= 8_000

    def test_quoting_back(self) -> None:
        """Nothing, the first lines, or all of it."""
        mail = self.mail("\n".join(f"line {number}" for number in range(50)), "Date: today")
        assert quotation(mail, mail.headers, "none") is None
        short = quotation(mail, mail.headers, "short")
        assert short == Quotation(text="\n".join(f"line {n}" for n in range(6)) + "\n…", date="today")
        assert quotation(mail, mail.headers, "full").text.endswith("line 49")


def test_line_ends_at_the_seams() -> None:
    """A large mail is read in pieces, and no line end is cut in two by that."""
    for shift in range(3):
        raw = b"x" * shift + b"a\r\n" * 800_000
        assert normalise_lines(raw) == raw.replace(b"\r\n", b"\n")
