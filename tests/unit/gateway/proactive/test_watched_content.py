"""What is new in a feed, a page or a JSON document."""

from __future__ import annotations

import json

import pytest

from gateway.proactive.jobs import watched_content
from gateway.proactive.jobs.triggers import AddressWatch, TriggerInvalid, parse_timing
from gateway.proactive.jobs.watched_content import MAX_ITEMS, keys_to_keep, news_of, read_items

URL = "https://club.example/news"
RSS = """<?xml version="1.0"?><rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/"><channel>
<title>Club</title><link>https://club.example/</link>
<item><title>Summer &amp;amp; sun&nbsp;party</title><link>https://club.example/2</link><guid>2</guid>
<media:group><media:title>not this</media:title></media:group></item>
<item><title><![CDATA[<b>Minutes</b> of May]]></title><guid>https://club.example/1</guid></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Club</title>
<entry><id>b</id><title type="html">Two &lt;i&gt;new&lt;/i&gt; boats</title>
<link rel="self" href="https://club.example/self"/><link href="https://club.example/b"/>
<author><name>Ann</name></author></entry></feed>"""
RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel><title>Club</title></channel><item rdf:about="x"><title>Only one</title>
<link>https://club.example/x</link></item></rdf:RDF>"""
JSON_FEED = json.dumps(
    {
        "version": "https://jsonfeed.org/version/1.1",
        "items": [
            {"id": 1, "url": "https://club.example/1", "content_text": "No title, only words."},
            "rubbish",
        ],
    }
)


def seen_in(text: str, kind: str = "text/html", part: str = "") -> list[str]:
    return list(read(text, kind, part).items.values())


def read(text: str, kind: str = "text/html", part: str = ""):
    return read_items(text.encode(), kind, address=URL, part=part)


@pytest.mark.parametrize(
    ("text", "kind", "entries"),
    [
        (RSS, "text/xml", ["Summer & sun\xa0party\n  https://club.example/2", "Minutes of May"]),
        (RSS, "text/html", ["Summer & sun\xa0party\n  https://club.example/2", "Minutes of May"]),
        (f"\n  {ATOM}", "application/atom+xml", ["Two new boats\n  https://club.example/b"]),
        (RDF, "application/rdf+xml", ["Only one\n  https://club.example/x"]),
        (JSON_FEED, "application/feed+json", ["No title, only words.\n  https://club.example/1"]),
        ("<rss><channel></channel></rss>", "text/xml", []),
    ],
)
def test_feeds(text, kind, entries):
    """Every kind, with a server's wrong name for it, blanks before it, entities of HTML, and HTML in titles."""
    found = read(text, kind)
    assert (found.is_feed, list(found.items.values())) == (
        True,
        [each.replace("\xa0", " ") for each in entries],
    )


def test_new_entries_are_told_and_old_ones_that_come_back_are_not():
    """A feed shows its newest entries only; one that was cut off its end is known when it stands there again."""
    entry = "<item><guid>{0}</guid><title>entry {0}</title></item>"
    old, new = ("".join(map(entry.format, range(*each))) for each in ((0, 20), (12, 32)))
    before, after = (read(f"<rss><channel>{each}</channel></rss>") for each in (old, new))
    seen = keys_to_keep(before, [])
    told = news_of(after, seen)
    assert told.startswith("- entry 20\n- entry 21\n") and told.endswith("- entry 29\nand 2 more")
    seen = keys_to_keep(after, seen)
    assert news_of(before, seen) == news_of(after, seen) == ""
    assert "entry 0" in news_of(before, keys_to_keep(after, []))  # the control: without a memory


@pytest.mark.parametrize("kind", ["xml", "json"])
def test_of_a_feed_without_measure_the_first_entries_count(kind, monkeypatch):
    """Making text of a hundred thousand took a processor for half a minute, at each look."""
    made = list[str]()
    real = watched_content.read_web_page
    monkeypatch.setattr(watched_content, "read_web_page", lambda text, _: made.append(text) or real(text, ""))
    numbers = range(100_000)
    xml = "".join(f"<item><guid>{each}</guid><title>entry {each}</title></item>" for each in numbers)
    items = [{"id": each, "title": f"entry {each}"} for each in numbers]
    feed = json.dumps({"version": "https://jsonfeed.org/version/1.1", "items": items})
    found = read(f"<rss><channel>{xml}</channel></rss>" if kind == "xml" else feed, part="entry")
    assert list(found.items.values()) == [f"entry {each}" for each in range(MAX_ITEMS)]
    assert len(made) == MAX_ITEMS


def test_pages_and_values():
    """The new lines of a page, the lines with certain words, and a field of JSON."""
    page = "<h1>Pool</h1><p>Open until {}</p><p>Visitors: {}</p>"
    seen = keys_to_keep(read(page.format(8, 1)), [])
    assert news_of(read(page.format(9, 1)), seen) == "- Open until 9"
    assert news_of(read("<h1>Pool</h1>"), seen) == "2 lines are gone."
    only = keys_to_keep(read(page.format(8, 1), part="open"), [])
    assert news_of(read(page.format(8, 2), part="open"), only) == ""
    assert "Visitors" in news_of(read(page.format(8, 2)), seen)
    price = json.dumps({"items": [{"price": {"eur": 9.5}}]})
    assert seen_in(price, "application/json", "items.0.price.eur") == ["9.5"]
    assert seen_in(price, "text/plain", "items.0.price.eur") == ["9.5"]
    assert seen_in("[News] today", "text/plain") == ["[News] today"]
    assert seen_in(json.dumps({"a": ["b"]}), "application/json")[1:3] == ['"a": [', '"b"']


@pytest.mark.parametrize(
    ("text", "kind", "part", "why"),
    [
        ("<rss><channel><item>", "text/xml", "", "not valid XML in line 1"),
        ('<!DOCTYPE rss [<!ENTITY a "b">]><rss>&a;</rss>', "text/xml", "", "entities of its own"),
        ("{", "application/json", "", "not valid JSON"),
        ("[" * 200_000, "application/json", "", "not valid JSON"),
        ("{}", "application/json", "price", "there is no 'price' in it"),
        ("<p></p>", "text/html", "", "no text"),
        ("", "text/html", "", "no text"),
        ("<p>Hello</p>", "text/html", "price", "nothing with 'price'"),
        ("\x00\x01", "application/pdf", "", "not text"),
    ],
)
def test_what_cannot_be_compared_says_why(text, kind, part, why):
    with pytest.raises(ValueError, match=why):
        read(text, kind, part)


@pytest.mark.parametrize("encoding", ["none-such", "rot13", "base64"])
def test_an_encoding_that_is_none_does_not_end_the_watcher(encoding):
    """A server names it; Python has codecs of these names that are no text, and expat asks for them."""
    assert read(f'<?xml version="1.0" encoding="{encoding}"?><rss><channel/></rss>', "text/xml") is not None


@pytest.mark.parametrize(
    ("encoding", "title"),
    [
        ("gb2312", "新闻"),
        ("Big5", "新聞"),
        ("Shift_JIS", "ニュース"),
        ("euc-kr", "소식"),
        ("iso-8859-1", "Grüße"),
    ],
)
def test_feeds_in_other_encodings(encoding, title):
    """As Chinese, Japanese, Korean and old servers send them."""
    text = f'<?xml version="1.0" encoding="{encoding}"?><rss><channel><item><title>{title}</title></item></channel></rss>'
    found = read_items(text.encode(encoding), "text/xml", address=URL)
    assert (found.is_feed, list(found.items.values())) == (True, [title])


def test_a_feed_that_names_an_external_file_reads_none(tmp_path):
    """No entity, parameter entity or DTD of another place is fetched; the entity stays out."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    text = f'<!DOCTYPE rss SYSTEM "file://{secret}"><rss><channel><item><title>x&s;</title></item></channel></rss>'
    assert seen_in(text) == ["x&s;"]
    with pytest.raises(ValueError, match="entities of its own"):
        read(f'<!DOCTYPE rss [<!ENTITY % s SYSTEM "file://{secret}">%s;]><rss/>')


def test_its_trigger_is_read_as_it_is_written():
    """With and without a part, in any script."""
    for part in ("", "Preis in €"):
        text = str(AddressWatch(3600, parse_timing("every 1 from 2026-05-01T08:00:00Z").start, URL, part))
        again = parse_timing(text)
        assert (str(again), again.part, again.address) == (text, part, URL)
    with pytest.raises(TriggerInvalid):
        parse_timing("watch 0 from 2026-05-01T08:00:00Z of https://club.example/")
