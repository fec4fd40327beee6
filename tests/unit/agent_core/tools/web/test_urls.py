"""Addresses of pages: one spelling each, what is refused, and which stand in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.tools.web.urls import addresses_in, host_of, is_written, normalise_url, resolve_link
from tests.rows import rows


@rows(
    ("written", "meant"),
    [
        ("https://example.org", "https://example.org/"),
        (" HTTPS://Example.ORG:443/A?b=C#d ", "https://example.org/A?b=C"),
        ("http://example.org:80", "http://example.org/"),
        ("http://example.org:443/", "http://example.org:443/"),
        ("https://example.org./", "https://example.org/"),
        ("https://bücher.example/straße?q=ü", "https://xn--bcher-kva.example/stra%C3%9Fe?q=%C3%BC"),
        ("https://example.org/a%20b", "https://example.org/a%20b"),
        ('https://example.org/a"<b>', "https://example.org/a%22%3Cb%3E"),
        ("https://example.org/\\a", "https://example.org/%5Ca"),
        # Digits in disguise are digits, so the check of the IP address sees them.
        ("http://１２７.０.０.１/", "http://127.0.0.1/"),
        ("http://①②⑦.0.0.1/", "http://127.0.0.1/"),
        ("http://127。0。0。1/", "http://127.0.0.1/"),
        ("http://[0:0:0:0:0:0:0:1]:80/", "http://[::1]/"),
        ("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/"),
    ],
)  # fmt: skip
def test_each_address_has_one_spelling(written, meant):
    assert normalise_url(written) == meant
    assert normalise_url(meant) == meant


@rows(
    "written",
    [
        *(
            "",
            "example.org",
            "//example.org/",
            "ftp://example.org/",
            "file:///etc/passwd",
            "data:text/plain,a",
        ),
        *("gopher://example.org/", "javascript:alert(1)", "http:example.org", "http:///etc", "https://"),
        *("http://public@127.0.0.1/", "http://a:b@example.org/", "http://example.org\\@127.0.0.1/"),
        *(
            "http://2130706433/",
            "http://127.1/",
            "http://0177.0.0.1/",
            "http://0x7f.1/",
            "http://0x7f000001/",
        ),
        *(
            "http://127.0.0.1.1/",
            "http://127.0.0.01/",
            "http://0x/",
            "http://1.2.3.4.5/",
            "http://256.1.1.1/",
        ),
        *("http://%31%32%37.0.0.1/", "http://exa mple.org/", "http://example.org/\nHost: a", "http://a\tb/"),
        *("http://[::1%25lo]/", "http://[::1", "http://::1/", "http://[127.0.0.1]/", "http://[::1]x/"),
        *("http://a..b/", "http://.a/", "http://-a.org/", "http://a_.-b.org/", f"http://{'a' * 64}.org/"),
        *("http://example.org:0/", "http://example.org:65536/", "http://example.org:8o/", "http://a:1:2/"),
        *(
            "http://example.org:-1/",
            "http://a\u2028b/",
            "https://example.org/" + "a" * 4000,
            "http://\u0130\u0300:80:/",
        ),
    ],
)
def test_what_is_no_plain_address_is_refused(written):
    with pytest.raises(ValueError):
        normalise_url(written)


@given(st.text(alphabet="htps:/[]@.%#?\\0123456789abcx \t\n１。ß-_", max_size=60))
def test_a_normalised_address_is_ascii_and_stays_as_it_is(text):
    for written in (text, f"http://{text}"):
        try:
            once = normalise_url(written)
        except ValueError:
            continue
        assert once.isascii() and once.isprintable() and " " not in once
        assert normalise_url(once) == once
        assert "@" not in once.split("/")[2]


def test_a_redirect_is_followed_from_where_it_stands():
    assert resolve_link("https://a.org/b/c?d", "e") == "https://a.org/b/e"
    assert resolve_link("https://a.org/b", "//c.org/d") == "https://c.org/d"
    assert host_of(resolve_link("https://a.org/b", "http://[::1]/")) == "::1"
    for target in (
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://a.org/",
        "http://u@a.org/",
        "/a b",
        "x" * 5000,
    ):
        with pytest.raises(ValueError):
            resolve_link("https://a.org/", target)


TEXT = """
See https://en.wikipedia.org/wiki/Squid_(animal), (or https://a.org/b). "https://c.org/?d=1&e=2"!
[one](https://d.org/x)[two](HTTPS://E.org/y) <https://f.org> *https://g.org/z* https://h.org:8080/a#b
https://archive.org/web/https://i.org/j and j.org/k, www.k.org. Not: readme, a@l.org, 1.5, e.g., 10:30, user@m.org/x
"""


def test_the_addresses_of_a_text_are_found():
    found = addresses_in(TEXT)
    assert found >= {
        "https://en.wikipedia.org/wiki/Squid_(animal)",
        "https://a.org/b",
        "https://c.org/?d=1&e=2",
        "https://d.org/x",
        "https://e.org/y",
        "https://f.org/",
        "https://g.org/z",
        "https://h.org:8080/a",
        "https://archive.org/web/https://i.org/j",
        "https://i.org/j",
        "https://j.org/k",
        "http://j.org/k",
        "https://www.k.org/",
    }
    hosts = {host_of(each) for each in found}
    assert hosts == {
        *"a.org c.org d.org e.org f.org g.org h.org i.org j.org".split(),
        "en.wikipedia.org",
        "archive.org",
        "www.k.org",
    }


def test_an_address_is_not_found_by_its_beginning_or_with_more_behind():
    found = addresses_in("https://a.org/b?c=1")
    assert found == {"https://a.org/b?c=1"}
    assert normalise_url("https://a.org/b?c=1&secret=2") not in found
    assert normalise_url("https://a.org/") not in found


@given(
    st.lists(
        st.sampled_from(["https://", "a.org", "(", ")", "[", "](", ".", "/x", " ", "ü", "http:", "@"]),
        max_size=40,
    )
)
def test_whatever_stands_in_a_text_gives_only_normalised_addresses(parts):
    for address in addresses_in("".join(parts)):
        assert normalise_url(address) == address


@rows(
    ("said", "wanted", "is_so"),
    [
        ("look at example.org", "https://example.org/", True),
        ("look at example.org", "http://example.org", True),
        ("look at example.org", "https://www.example.org/", True),
        ("look at www.example.org/news/", "https://example.org/news", True),
        ("look at http://example.org/news", "https://example.org/news/", True),
        ("look at https://example.org/a?b=1", "https://www.example.org/a?b=1", True),
        # what could carry something out, or to somebody else
        ("look at example.org", "https://example.org/door-code-0000", False),
        ("look at example.org", "https://example.org/?d=0000", False),
        ("look at example.org", "https://code-0000.example.org/", False),
        ("look at example.org", "https://www.www.example.org/", False),
        ("look at example.org", "https://example.org:8443/", False),
        ("look at example.org", "https://example.org//", False),
        ("look at example.org/a", "https://example.org/A", False),
        ("look at example.org/a", "https://example.org/", False),
        ("look at https://example.org/a", "http://example.org/a", False),
        ("look at https://example.org/a?b=1", "https://example.org/a/?b=1/", False),
        ("write to ann@example.org", "https://example.org/", False),
    ],
)
def test_an_address_that_somebody_wrote_may_differ_in_what_says_nothing(said, wanted, is_so):
    assert is_written(normalise_url(wanted), addresses_in(said)) is is_so
