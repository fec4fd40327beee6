"""Whatever strangers call their files, put into them and say of them: names are safe, and nothing raises."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from agent_core.messages import Attachment
from agent_core.prompt import attachment_lines
from agent_core.tools.plain_text import text_in
from channels.attachments import media_type_of, picture_in, safe_extension, safe_name
from channels.attachments.file_kinds import MAX_NAME_BYTES
from channels.matrix.events.media_events import MediaInvalid, media_in, media_kind

names = st.text(st.characters(), max_size=300) | st.text("ab./\\ \0\u202e\u200b.", max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
PICTURES = (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"GIF89a", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBPVP8X", b"")


@given(names)
@example("..")
@example("a/.")
@example("\u0344" * 100)
@example("x" * 118 + ". ")
@example("a" * 200 + ".\u00e4" * 10)
def test_a_safe_name_is_one(name):
    """One part, nothing hidden, no leading dot, within its length, storable; made safe again it stays the same."""
    made = safe_name(name)
    assert made
    assert not set(made) & set('/\\\0<>:"|?*')
    assert not made.startswith((".", " "))
    assert len(made.encode()) <= MAX_NAME_BYTES
    assert all(unicodedata.category(char)[0] != "C" for char in made)
    assert safe_name(made) == made
    assert safe_extension(name)[1:].isalnum()


@given(names, st.text(max_size=80), st.sampled_from(PICTURES), st.binary(max_size=100))
def test_every_file_has_a_kind(name, declared, begin, rest):
    """A kind of the right form whatever is said, and no beginning of a file raises."""
    found = picture_in(begin + rest)
    kind = media_type_of(name, declared, found)
    assert kind.count("/") == 1
    assert kind.isascii()
    assert found is None or (found.width > 0 and kind == found.media_type)


@given(st.binary(max_size=2000), st.booleans(), st.booleans())
def test_any_bytes_are_text_or_not(content, html, cut):
    """A text that every encoder takes, or None."""
    text = text_in(content, html=html, cut=cut)
    assert text is None or isinstance(text.encode(), bytes)


@given(names, st.text(max_size=50))
def test_a_line_about_a_file_is_one_line(name, kind):
    """No name makes a second line or ends the brackets early."""
    file = Attachment(name=name, media_type=kind, size_bytes=1, path="p", sha256="0" * 64)
    line = attachment_lines([file])
    assert len(line.splitlines()) == 1
    assert (line.count("["), line.count("]"), line[-1]) == (1, 1, "]")


@given(
    st.dictionaries(
        st.sampled_from(["msgtype", "body", "filename", "url", "file", "info"]), json_values, max_size=6
    ),
    st.sampled_from(["m.image", "m.file", "m.audio", "m.text"]),
    json_values,
)
def test_no_event_about_a_file_raises_anything_else(content, msgtype, file):
    """A file, none, or `MediaInvalid`; also where its key is any JSON at all."""
    for shape in (content, {**content, "msgtype": msgtype, "file": file}):
        try:
            found = media_in("m.room.message", shape)
        except MediaInvalid:
            continue
        assert (found is not None) == bool(media_kind("m.room.message", shape))
