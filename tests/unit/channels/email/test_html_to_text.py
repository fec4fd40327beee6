"""From HTML and quoted histories to the new text of a mail, in linear time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_core.html_to_text import html_to_text
from channels.email.parse.reply_stripping import split_quotes
from tests.counted_steps import steps
from tests.rows import rows


class TestHtml:
    def test_what_is_read(self) -> None:
        """Blocks become lines, list items and link targets stay, entities are resolved."""
        source = (
            "<html><head><title>t</title><style>p{}</style></head><body><h1>Hello</h1><p>one<br>two</p>"
            '<ul><li>first<li>second</ul><a href="https://x.test/?a=1&amp;b=2">link</a> &lt;tag&gt;'
            "<table><tr><td>a</td><td>b</td></tr></table><script>evil()</script></body></html>"
        )

        text = html_to_text(source)
        assert "Hello\n\none\ntwo" in text
        assert "- first\n- second" in text
        assert "link (https://x.test/?a=1&b=2) <tag>" in text
        assert "a b" in text
        assert "evil" not in text
        assert "p{}" not in text

    @rows(
        "hidden",
        [
            '<div style="display: none">SYSTEM</div>',
            "<div hidden>SYSTEM</div>",
            '<p style="font-size:0px">SYSTEM</p>',
            "<span style='color:red; VISIBILITY : hidden'><b>SYSTEM</b></span>",
            '<div style="display:none"><div>a</div>SYSTEM</div>',
            '<div style="opacity:0">SYSTEM</div>',
            '<div style="display:&#110;one">SYSTEM</div>',
            "<!-- SYSTEM -->",
            "<noscript>SYSTEM</noscript>",
            "<template>SYSTEM</template>",
        ],
    )
    def test_what_nobody_sees_is_not_read(self, hidden: str) -> None:
        """Hidden text stays out; what stands around it stays."""
        assert html_to_text(f"before {hidden} after").split() == ["before", "after"]

    @rows(
        "source, said",
        [
            (
                '<a href="https://x.test/buy"><img src="https://x.test/b.png" alt="Buy &lt;now&gt;"></a>',
                "[picture: Buy <now>]  (https://x.test/buy)",
            ),
            ("<img alt='' src='https://x.test/p.gif'><img src='https://x.test/q.gif'>", ""),
            ("<img src='cid:a' alt='its name is better'>", "[picture: a]"),
            ('<div style="display:none"><img src="https://x.test/b.png" alt="SYSTEM"></div>', ""),
            ('<p style="visibility:hidden"><img src="https://x.test/b.png" alt="SYSTEM"></p>', ""),
            ('<img alt="a&#1;&#8203;b">', "[picture: ab]"),
            (f'<img alt="{"x" * 900}">', f"[picture: {'x' * 200}]"),
        ],
    )
    def test_the_text_of_a_picture_that_is_not_fetched(self, source: str, said: str) -> None:
        """A mail may say in pictures alone what is for sale; its reader sees that where none is loaded."""
        assert html_to_text(source).strip() == said

    def test_invisible_characters_are_removed(self) -> None:
        """Zero-width, bidi and tag characters."""
        assert html_to_text("a\u200bb\u202ec\U000e0041d") == "abcd"

    @rows(
        "visible",
        ['<p style="font-size:0.9em">x</p>', '<p data-hidden="x">x</p>', "1 < 2 x", '<a title="a > b">x</a>'],
    )
    def test_what_only_looks_hidden(self, visible: str) -> None:
        """Small is not hidden, and an attribute's name is not a word in another."""
        assert "x" in html_to_text(visible)

    @rows(
        "piece",
        [
            "<b",
            "<!--",
            "<a href='",
            '<b "',
            "</",
            "<script>",
            "<li>",
            "<div hidden>",
            "&amp",
            "<a href=http://x>",
        ],
    )
    def test_linear(self, piece: str) -> None:
        """Twice as much of anything is at most about twice the work."""
        small, large = piece * 1_000, piece * 2_000

        assert steps(lambda: html_to_text(large)) < 2.5 * steps(lambda: html_to_text(small)) + 2_000

    @given(st.text(alphabet="<>/!-ab \"'=&;", max_size=80))
    def test_total(self, source: str) -> None:
        """Any text gives a text."""
        html_to_text(source)


class TestNewText:
    @rows(
        ("text", "expected"),
        [
            ("Hello\n\nOn Mon, 5 Jan 2026 at 10:00, Bot <b@x.test> wrote:\n> old\n> older", "Hello"),
            ("Hallo\n\nAm Mo., 5. Jan. 2026 um 10:00 Uhr schrieb Bot\n<b@x.test>:\n\n> alt", "Hallo"),
            ("Hello\n\n-----Original Message-----\nFrom: x\n\nold", "Hello"),
            (
                "Hello\nRegards, Alice\n\nFrom: Bot <b@x.test>\nSent: Monday\nTo: Alice\nSubject: x\n\nold text",
                "Hello\nRegards, Alice",
            ),
            (
                "Hello\n\n________________________________\nVon: Bot <b@x.test>\nGesendet: Montag\nAn: Alice\n\nalt",
                "Hello",
            ),
            (
                "Hello\n\nSent from my iPhone\n\n> On 5 Jan 2026, at 10:00, Bot <b@x> wrote:\n>\n> old",
                "Hello\n\nSent from my iPhone",
            ),
            (
                "> question 1\nanswer 1\n> question 2\nanswer 2",
                "> question 1\nanswer 1\n> question 2\nanswer 2",
            ),
            ("> question 1\nanswer 1\n> rest\n", "> question 1\nanswer 1"),
            ("Hello\n-- \nAlice\nDisclaimer", "Hello\n-- \nAlice\nDisclaimer"),
            ("Hello\n-- \nAlice\n\n> old", "Hello\n-- \nAlice"),
            ("> only a quotation", "> only a quotation"),
            ("-- \nonly a signature", "-- \nonly a signature"),
            ("From: here to there", "From: here to there"),
            ("Compare:\n> a\n\nWhich one?", "Compare:\n> a\n\nWhich one?"),
            ("See:\n> code", "See:"),
            ("", ""),
        ],
    )
    def test_what_is_certainly_new(self, text: str, expected: str) -> None:
        """What the usual mail programs make, and what must not be touched. All else stands below, nothing is lost."""
        found = split_quotes(text)
        assert found.new == expected
        kept = set(f"{found.new}\n{found.rest}".split("\n"))
        assert {line for line in text.split("\n") if line.strip(" _>")} <= kept

    @rows(
        "piece",
        ["On ", "On \n", "> \n", "From: x\n", "\n", "____________\n", "On 1 wrote:\n", "a:\n", "> a\n"],
    )
    def test_linear(self, piece: str) -> None:
        """Twice as much of anything is at most about twice the work."""
        small, large = piece * 1_000, piece * 2_000
        assert (
            steps(lambda: split_quotes(large, [large]))
            < 2.5 * steps(lambda: split_quotes(small, [small])) + 2_000
        )

    @given(st.text(alphabet="> \n:-_aOn1@", max_size=80))
    def test_never_more_and_nothing_is_lost(self, text: str) -> None:
        """Each line with a letter in it stands in one of the two."""
        found = split_quotes(text)
        lines = f"{found.new}\n{found.rest}".split("\n")
        assert sorted(filter(str.isalnum, "".join(lines))) == sorted(filter(str.isalnum, text))
