"""What a file is called and what it is: safe names, and pictures that are known by their content."""

from __future__ import annotations

import pytest

from channels.attachments import picture_in, safe_name
from tests.pictures import gif, jpeg, png, webp

# ── names ──


@pytest.mark.parametrize(
    ("sent", "safe"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\windows\\system.ini", "system.ini"),
        ("/", "file"),
        ("..", "file"),
        ("", "file"),
        ("folder/", "folder"),
        (".bashrc", "bashrc"),
        ("a\0b\r\nc.txt", "ab c.txt"),
        ("\u202egnp.exe", "gnp.exe"),
        ("two  \t blanks .txt ", "two blanks .txt"),
        ('a<b>:"c"|?*.txt', "a_b___c____.txt"),
        ("half \ud800 a pair.txt", "half _ a pair.txt"),
        ("Straße.pdf", "Straße.pdf"),
    ],
)
def test_a_name_is_made_safe(sent, safe):
    """No path, nothing invisible, nothing that turns the direction of writing, no leading dot."""
    assert safe_name(sent) == safe
    assert safe_name(safe) == safe


@pytest.mark.parametrize("name", ["x" * 500 + ".pdf", "ß" * 200 + ".tar.gz", "." * 300, "a." + "b" * 400])
def test_a_long_name_is_shortened_before_its_ending(name):
    """At most 120 bytes, and still of its kind."""
    made = safe_name(name)
    assert len(made.encode()) <= 120
    assert made.endswith(".pdf") is name.endswith(".pdf")
    assert safe_name(made) == made


# ── pictures ──


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (png(3, 2), ("image/png", 3, 2)),
        (jpeg(640, 480), ("image/jpeg", 640, 480)),
        (jpeg(640, 480, padding=60_000), ("image/jpeg", 640, 480)),
        (gif(20, 10), ("image/gif", 20, 10)),
        (webp("VP8 "), ("image/webp", 300, 200)),
        (webp("VP8L"), ("image/webp", 300, 200)),
        (webp("VP8X"), ("image/webp", 300, 200)),
    ],
)
def test_a_picture_is_known_by_its_content(content, found):
    """Kind and size of the four kinds that models look at."""
    picture = picture_in(content)
    assert (picture.media_type, picture.width, picture.height) == found


def test_no_beginning_of_a_picture_is_too_short_to_be_refused():
    """Every prefix of every kind, and every kind with its size overwritten, is read without an exception."""
    for whole in (png(), jpeg(padding=30), gif(), webp("VP8 "), webp("VP8L"), webp("VP8X")):
        for length in range(len(whole)):
            picture_in(whole[:length])
            picture_in(whole[:length] + b"\xff" * 40)
    assert picture_in(b"<html><body>not a picture") is None
    assert picture_in(png(0, 5)) is None
