"""Which text of an HTML mail or page people see, as browsers and mail programs decide it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_core.html_elements import OpenElements
from agent_core.html_to_text import html_to_text, read_web_page
from tests.counted_steps import steps
from tests.rows import rows

SHOWN = [
    '<td style="font-size:0px;padding:20px 0"><div style="font-size:13px">SEEN</div></td>',
    '<table><tr><td style="font-size:0"><div style="font-size:medium">SEEN</div></td></tr></table>',
    '<div style="font-size:0"><div style="font:italic 13px/1.4 Arial">SEEN</div></div>',
    '<div style="font-size:0"><font size="2">SEEN</font></div>',
    '<div style="font-size:0"><span style="font-size:clamp(1rem, 2vw, 2rem)">SEEN</span></div>',
    '<p style="display:none">x<p>SEEN',
    '<p style="display:none">x<div>SEEN</div>',
    '<p style="display:none">x<li>SEEN',
    "<ul><li hidden>x<li>SEEN</ul>",
    "<dl><dt hidden>x<dd>SEEN</dl>",
    "<table><tr><td hidden>x<td>SEEN</table>",
    "<table><tr hidden><td>x<tr><td>SEEN</table>",
    "<table><tr><td><p hidden>x</td><td>SEEN</td></tr></table>",
    "<table><tr><td><div hidden>x</table>SEEN",
    "<table><tbody hidden><tr><td>x<tbody><tr><td>SEEN</table>",
    "<table><tr><td hidden><table><tr><td>x</table></td><td>SEEN</td></table>",
    "<div><span hidden>x</div>SEEN",
    "<b hidden><div></div></b>SEEN",
    '<div style="visibility:hidden"><span style="visibility:visible">SEEN</span></div>',
    '<div style="visibility:collapse"><p><b style="VISIBILITY: visible !important">SEEN</b></div>',
    '<div style="max-height:0;overflow:visible">SEEN</div>',
    '<div style="display:none;display:block">SEEN</div>',
    '<div style="display:none; display: block !important">SEEN</div>',
    '<div hidden style="display:block">SEEN</div>',
    '<div style="opacity:0.9">SEEN</div>',
    '<div style="mso-hide:all">SEEN</div>',
    '<td style="display:none">SEEN',
    "<div hidden>x</div>SEEN",
]
UNSEEN = [
    '<div style="font-size:0px">UNSEEN</div>',
    '<div style="font-size:0"><div style="font-size:1.5em">UNSEEN</div></div>',
    '<div style="font-size:0"><div style="font-size:100%">UNSEEN</div></div>',
    '<div style="font:0/0 a">UNSEEN</div>',
    '<div style="font-size:0"><div style="font-size:13px"></div>UNSEEN</div>',
    '<div style="display:none"><div style="display:block;font-size:13px;visibility:visible">UNSEEN</div></div>',
    '<div style="opacity:0"><b style="opacity:1">UNSEEN</b></div>',
    '<div style="max-height:0px;overflow:hidden"><b style="overflow:visible">UNSEEN</b></div>',
    '<div style="display:none!important;display:block">UNSEEN</div>',
    "<div style=display:none>UNSEEN</div>",
    '<div style="visibility:hidden"><b style="visibility:visible"></b>UNSEEN</div>',
    "<div hidden></b></span></p></td></table>UNSEEN</div>",
    "<div hidden><table><tr><td></div>UNSEEN</table></div>",
    "<span hidden><div></span>UNSEEN</div></span>",
    "<p><b hidden>x<p>UNSEEN</b>",
    "<ul><li hidden>x<ul><li>UNSEEN</ul>UNSEEN</ul>",
    '<a style="font-size:0" href="https://mail.test/UNSEEN">x</a>',
]


@rows("source", SHOWN)
def test_text_that_people_see_is_read(source: str) -> None:
    """In a mail, a chat's formatted body and a page, which are read by the same code."""
    assert "SEEN" in html_to_text(source)
    assert "SEEN" in read_web_page(source, "https://mail.test/").text


@rows("source", UNSEEN)
def test_text_that_nobody_sees_is_not(source: str) -> None:
    """The control: what hides still hides, however its end is written, and what follows is read."""
    text = html_to_text(f"<div>{source}</div><p>behind</p>")
    assert "UNSEEN" not in text
    assert "behind" in text


def test_lines_inside_of_a_wrapper_of_no_size_stay_apart() -> None:
    """Every mail made with MJML has such wrappers around all of its text."""
    cell = '<td style="font-size:0px"><div style="font-size:13px"><p>{}</p></div></td>'
    source = f"<table><tr>{cell.format('one')}</tr><tr>{cell.format('two')}</tr></table>"
    assert html_to_text(source) == "one\n\ntwo"


def test_a_link_of_visible_text_keeps_its_address_in_such_a_wrapper() -> None:
    link = (
        '<div style="font-size:0"><a href="https://mail.test/x"><b style="font-size:13px">here</b></a></div>'
    )
    assert html_to_text(link) == "here (https://mail.test/x)"


@rows(
    "piece",
    [
        "<p>",
        "<b><p>",
        "<li><div>",
        "<table>",
        "<table><tr><td>",
        "<td>",
        "</p>",
        "<div></b>",
        "<span></q>",
        "<b hidden><p>",
        "<ul><li>",
        "</table>",
        "<button><p>",
    ],
)
def test_linear(piece: str) -> None:
    """Twice as much of anything is at most about twice the work."""
    small, large = piece * 1_000, piece * 2_000
    assert steps(lambda: html_to_text(large)) < 2.5 * steps(lambda: html_to_text(small)) + 2_000


TAGS = ["p", "div", "table", "tr", "td", "tbody", "li", "ul", "b", "span", "br", "dd"]


@given(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(["", "hidden", "/"])), max_size=60))
def test_total(tags: list[tuple[str, str]]) -> None:
    """Any tags in any order end without an error, and nothing is hidden unless something hid it."""
    elements = OpenElements()
    for tag, how in tags:
        if how == "/":
            elements.close(tag)
        else:
            elements.open(tag, how)
    hid = any(how == "hidden" for _, how in tags)
    assert hid or not elements.innermost.is_hidden
