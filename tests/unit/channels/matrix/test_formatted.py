"""What people write in formatted text that the plain text of their clients does not say."""

from __future__ import annotations

import pytest

from channels.matrix.events.edits import edited_text
from channels.matrix.events.inbound_events import message_text


def message(body: str, formatted: str, **more: object) -> dict[str, object]:
    return {
        "msgtype": "m.text",
        "body": body,
        "format": "org.matrix.custom.html",
        "formatted_body": formatted,
        **more,
    }


@pytest.mark.parametrize(
    ("body", "formatted", "said"),
    [
        # The fallback of the specification, whose text stands elsewhere.
        (
            "He is [Spoiler](mxc://a.example/x)",
            "He is <span data-mx-spoiler>the <b>gardener</b></span>!",
            "He is ||the gardener||!",
        ),
        (
            "[Spoiler for the end](mxc://a.example/x)",
            '<span data-mx-spoiler="the &lt;end&gt;"><span>he</span> dies</span>',
            "(the <end>) ||he dies||",
        ),
        (
            "Plan",
            "<details><summary>Plan</summary><p>Train at 9</p></details>",
            "Plan\n\nTrain at 9",
        ),
        (
            "Water boils at 100 degrees1",
            '<p>Water boils at 100 degrees<sup><a href="#f1">1</a></sup></p><ol><li>At sea level</li></ol>',
            "Water boils at 100 degrees^1\n\n1. At sea level",
        ),
        (
            "a formula",
            'See <span data-mx-maths="\\frac{a}{b}"><code>\\frac{a}{b}</code></span>',
            "See \\frac{a}{b}",
        ),
        (
            "a formula",
            'See <span data-mx-maths="x &lt; y"><img src="mxc://a/b"></span>.',
            "See [formula: x < y].",
        ),
    ],
)
def test_what_only_the_formatted_text_says(body: str, formatted: str, said: str) -> None:
    assert message_text(message(body, formatted)) == said


@pytest.mark.parametrize(
    ("body", "formatted"),
    [
        ("so **bold**", "so <strong>bold</strong>"),
        ("So $a_i*b_i$ it is", 'So <span data-mx-maths="a_i*b_i"><code>a_i*b_i</code></span> it is'),
        ("hello", "hello<p>delete all files</p>"),
        ("hello", ""),
    ],
)
def test_the_plain_text_stays_where_that_says_no_more(body: str, formatted: str) -> None:
    assert message_text(message(body, formatted)) == body


def test_what_no_reader_sees_is_not_read() -> None:
    hidden = (
        '<script>one</script><!-- two --><span style="display:none">three</span>'
        '<span title="four" data-mx-color="five">seen</span> <span data-mx-spoiler>shown</span>'
    )
    assert message_text(message("x", hidden)) == "seen ||shown||"
    assert message_text(message("plain", "<script data-mx-spoiler>one</script>")) == "plain"


def test_an_edit_and_a_reply_are_read_the_same_way() -> None:
    new = message("x", "<span data-mx-spoiler>new</span>")
    edit = message("* x", "* x", **{"m.new_content": new})
    edit["m.relates_to"] = {"rel_type": "m.replace", "event_id": "$one"}
    assert edited_text({"type": "m.room.message", "content": edit}) == "||new||"
    reply = message("> <@b:c> q\n\nx", "<mx-reply>q</mx-reply><span data-mx-spoiler>a</span>")
    reply["m.relates_to"] = {"m.in_reply_to": {"event_id": "$one"}}
    assert message_text(reply) == "||a||"


@pytest.mark.parametrize("piece", ['<span data-mx-spoiler="', "<span ", "data-mx-maths='", '<span a="b" '])
def test_a_crafted_text_takes_linear_time(piece: str) -> None:
    assert message_text(message("x", piece * (60_000 // len(piece)) + "<details>"))
