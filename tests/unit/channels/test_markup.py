"""What becomes of a model's Markdown: HTML that is safe, text that reads well."""

import re

from hypothesis import given
from hypothesis import strategies as st

from channels.markup import MAX_BYTES, clean_html, remove_control_characters, to_html, to_text
from tests.rows import rows

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "![x](javascript:alert(1))",
    '[x](https://a "\\" onclick=alert(1) x=\\"")',
    '```x"><script>alert(1)</script>\ncode\n```',
    "<a href='https://a' onclick='alert(1)'>x</a>",
    "<javascript:alert(1)>",
    "<style>*{display:none}</style>",
]


def is_harmless(html: str) -> bool:
    """No element and no attribute that could do something."""
    for tag in re.findall(r"<[a-zA-Z][^>]*>", html):
        name = re.match(r"<([a-zA-Z0-9]+)", tag)[1].lower()
        if name in {"script", "img", "style", "iframe", "form", "svg", "object"}:
            return False
        bare = re.sub(r'"[^"]*"', '""', tag)
        if re.search(r"\son\w+\s*=", bare):
            return False
        if re.search(r'href="\s*(javascript|data|vbscript):', tag, re.IGNORECASE):
            return False
    return True


@rows("source", HOSTILE)
def test_nothing_active_comes_out(source):
    """Scripts, event handlers, forged links and pictures never reach a client."""
    assert is_harmless(to_html(source))


@rows("source", [HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[8]])
def test_the_check_itself_sees_the_danger(source):
    """A naive renderer (HTML passed through, links unchecked) is caught by the same check."""
    naive = re.sub(r"\[(.*?)\]\((.*?)\)$", r'<a href="\2">\1</a>', source)

    assert not is_harmless(naive)


def test_a_picture_becomes_a_link():
    """Nothing is fetched by looking at a message; the address can still be opened."""
    html = to_html("![a cat](https://pictures.example/cat.png?secret=1)")

    assert '<a href="https://pictures.example/cat.png?secret=1">a cat</a>' in html


def test_formats_that_models_use():
    """Emphasis, lists, code with its language, tables, strike-through and line breaks."""
    html = to_html(
        "# T\n**b** _e_ ~~s~~\nnext\n\n1. one\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```python\nx < 1\n```"
    )

    for expected in (
        "<h1>T</h1>", "<strong>b</strong>", "<em>e</em>", "<s>s</s>", "<br>", "<ol>", "<td>2</td>",
        '<code class="language-python">x &lt; 1',
    ):  # fmt: skip
        assert expected in html


def test_html_in_the_source_is_shown_as_text():
    """What a model writes about HTML is readable."""
    assert to_html("use <b>bold</b>") == "<p>use &lt;b&gt;bold&lt;/b&gt;</p>"


def test_too_much_is_shown_as_it_is():
    """A text over the limit is not interpreted, and still complete and harmless."""
    source = "<script>x</script> **b** " * (MAX_BYTES // 20)

    html = to_html(source)

    assert html.startswith("<pre>&lt;script&gt;")
    assert html.endswith("**b** </pre>")


@rows(
    "source",
    [
        "[" * 200_000,
        "![[" * 60_000,
        "> " * 5_000 + "deep",
        "".join("  " * level + f"- item{level}\n" for level in range(150)),
    ],
)
def test_nothing_is_lost_to_nesting_or_cost(source):
    """Deep and expensive sources are shown uninterpreted, with all their words."""
    words = set(re.findall(r"\w+", source))

    assert words <= set(re.findall(r"\w+", to_html(source)))
    assert words <= set(re.findall(r"\w+", to_text(source)))


def test_odd_characters_survive():
    """Half characters and NUL become something that every encoder takes."""
    assert "\x00" not in to_html("a\x00b\ud800c")
    to_html("a\x00b\ud800c").encode()
    to_text("a\x00b\ud800c").encode()


def test_foreign_html_is_cleaned():
    """The cleaning works without the renderer too."""
    assert clean_html('<p onclick="x">a<img src=y><script>b</script></p>') == "<p>a</p>"


def test_plain_text():
    """Marks go, addresses stay, lists and quotes keep their shape, code and tables are as written."""
    source = (
        "# Title\n\nSome **bold** and [a link](https://x.test/a).\n\n- one\n  - two\n\n3. three\n4. four\n\n"
        "> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```sh\nls *.py\n```\nEnd"
    )

    assert to_text(source) == (
        "Title\n\nSome bold and a link (https://x.test/a).\n\n- one\n  - two\n\n3. three\n4. four\n\n"
        "> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n    ls *.py\n\nEnd"
    )


@given(st.text(alphabet=st.sampled_from("a <>*_`~[]()!#|-\n&\\:\"'=/1."), max_size=300))
def test_any_text_is_taken(source):
    """No input raises, and none produces something active."""
    assert is_harmless(to_html(source))
    to_text(source)


def test_nothing_that_leaves_steers_a_terminal():
    """People read mail and rooms in terminals, too, where an escape sequence retitles, hides or types."""
    evil = "one\x1b[2J\x1b]52;c;ZWNobwo=\x07 two\x9b31m\x7f\tthree\nfour \U0001f600 \u200d"
    for said in (remove_control_characters(evil), to_text(evil), to_html(evil)):
        assert not set(said) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
        assert all(word in said for word in ("one", "two", "three", "four", "\U0001f600"))
    assert remove_control_characters("a\r\n\tb") == "a\r\n\tb"


FORMULA = '<span data-mx-maths="a_i*b_i + c_i*d_i"><code>a_i*b_i + c_i*d_i</code></span>'


@rows(
    ("source", "shown", "plain"),
    [
        (r"So \(a_i*b_i + c_i*d_i\).", f"<p>So {FORMULA}.</p>", r"So \(a_i*b_i + c_i*d_i\)."),
        ("$$x<1$$", '<div data-mx-maths="x&lt;1"><pre><code>x&lt;1</code></pre></div>', "$$x<1$$"),
        (
            "So\n\\[\nx = 1\n+ y\n\\]",
            '<p>So</p>\n<div data-mx-maths="x = 1\n+ y"><pre><code>x = 1\n+ y</code></pre></div>',
            "So\n\n\\[\nx = 1\n+ y\n\\]",
        ),
        ("a_i*b_i + c_i*d_i, *so*", "<p>a_i*b_i + c_i*d_i, <em>so</em></p>", "a_i*b_i + c_i*d_i, so"),
        ("$5 and $10, $$ and $$", "<p>$5 and $10, $$ and $$</p>", "$5 and $10, $$ and $$"),
        (
            "He is ||the <i>||!",
            '<p>He is <span data-mx-spoiler="">the &lt;i&gt;</span>!</p>',
            "He is ||the <i>||!",
        ),
        ("a || b || c", "<p>a || b || c</p>", "a || b || c"),
        ("`||x||` `\\(x\\)`", "<p><code>||x||</code> <code>\\(x\\)</code></p>", "||x|| \\(x\\)"),
        (
            "So[^1].\n\n[^1]: Wiki",
            "<p>So<sup>[1]</sup>.</p>\n<p><sup>[1]</sup>: Wiki</p>",
            "So[^1].\n\n[^1]: Wiki",
        ),
        (
            "<details>\n<summary><b>More</b> &amp;</summary>\n\nhidden\n\n</details>\n\nend",
            "<details>\n<summary>More &amp;</summary>\n<p>hidden</p>\n</details>\n<p>end</p>",
            "More &\n\nhidden\n\nend",
        ),
        ("<details>\nnever closed", "<p>&lt;details&gt;<br>\nnever closed</p>", "<details>\nnever closed"),
    ],
)
def test_what_models_write_beyond_markdown_is_shown(source, shown, plain):
    """Formulas, prices, spoilers, footnotes and details, for clients that know them and as text."""
    assert to_html(source) == shown
    assert to_text(source) == plain
