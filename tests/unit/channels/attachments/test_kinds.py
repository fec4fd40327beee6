"""What a file is, by what is said of it."""

from __future__ import annotations

from channels.attachments import media_type_of
from tests.rows import rows


@rows("declared", ["application/octet-stream", "", "no type"])
@rows(
    ("name", "kind"),
    [
        ("New Recording 7.m4a", "audio/mp4"),
        ("PTT-20261124.ogg", "audio/ogg"),
        ("memo.oga", "audio/ogg"),
        ("memo.opus", "audio/opus"),
        ("memo.MP3", "audio/mpeg"),
        ("memo.wav", "audio/wav"),
        ("call.amr", "audio/amr"),
        ("table.xyzzy", "application/octet-stream"),
    ],
)
def test_a_sound_of_which_a_mail_says_no_type_is_one_by_its_name(name, declared, kind):
    """Many mail programs call every file a stream of bytes; a voice memo is listened to all the same."""
    assert media_type_of(name, declared, None) == kind


def test_what_is_said_counts_before_the_name():
    """A table that is called like a sound is a table."""
    assert media_type_of("a.ogg", "text/csv", None) == "text/csv"
