"""What a sound file is, and how long it says that it lasts."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core.media.sound_file import NotAudio, sound_file_of
from tests.rows import rows
from tests.sounds import m4a, mp3, ogg_opus, ogg_page, wav


def _wav_of(fmt: bytes, *others: bytes, data: int) -> bytes:
    chunks = [struct.pack("<4sI", b"fmt ", len(one)) + one for one in (fmt, *others)]
    return b"RIFF\0\0\0\0WAVE" + b"".join(chunks) + struct.pack("<4sI", b"data", data) + bytes(data)


_SPEEX = b"Speex   " + bytes(28) + (8_000).to_bytes(4, "little") + bytes(40)
_VORBIS = b"\x01vorbis" + bytes(4) + b"\x01" + (48_000).to_bytes(4, "little") + bytes(12) + b"\xb8\x01"
_SKELETON = b"fishead\0" + bytes(50)


@rows(
    ("content", "kind"),
    [
        (wav(12.5), "wav"),
        (ogg_opus(12.5), "ogg"),
        (mp3(12.5), "mp3"),
        (m4a(12.5), "m4a"),
        (m4a(12.5, version=1), "m4a"),
        (ogg_page([_SPEEX], kind=2) + ogg_page([bytes(20)], granule=100_000), "ogg"),
        (ogg_page([_VORBIS], kind=2) + ogg_page([bytes(20)], granule=600_000), "ogg"),
        (ogg_page([_SKELETON], kind=2, serial=9) + ogg_opus(12.5), "ogg"),
        (ogg_page([b"\x7fFLAC" + bytes(40)], kind=2, serial=2) + ogg_opus(12.5), "ogg"),
        (_wav_of(struct.pack("<HHIIHHH", 0x31, 1, 8000, 1_625, 65, 0, 0), data=20_313), "wav"),
        (_wav_of(struct.pack("<HHIIHH", 0x11, 1, 8000, 0, 1024, 4), data=50_000), "wav"),
    ],
)
def test_the_length_is_that_of_what_it_holds(content, kind):
    """Each kind to a twentieth of a second."""
    found = sound_file_of(content)

    assert found.kind == kind
    assert found.seconds == pytest.approx(12.5, abs=0.05)


@rows(
    "content",
    [
        ogg_page([_SPEEX[:36] + bytes(4) + _SPEEX[40:]], kind=2) + ogg_page([b"x"], granule=9),
        _wav_of(struct.pack("<HHIIHH", 0x31, 1, 8000, 0, 65, 0), data=1_000_000),
    ],
    ids=["rate of Speex", "pace of WAV"],
)
def test_what_cannot_be_measured_is_not_believed(content):
    """An impossible rate."""
    with pytest.raises(NotAudio, match=r"cannot tell|damaged"):
        sound_file_of(content)


@rows(
    "content",
    [ogg_opus(3, granule=0), ogg_opus(3, granule=-1), m4a(3, told=0), m4a(3, told=0xFFFF_FFFF)],
)
def test_a_file_without_a_length_is_refused(content):
    """Else a recording of any length would count as none: cut off, in fragments, or live."""
    with pytest.raises(NotAudio, match="does not say how long it is"):
        sound_file_of(content)


def test_the_last_page_that_has_a_position_counts():
    """A page on which no packet ends has none (-1), and another stream's position is not that of the sound."""
    others = ogg_page([b"x"], granule=-1) + ogg_page([b"x"], granule=9_999_999, serial=9)
    assert sound_file_of(ogg_opus(12.5) + others).seconds == pytest.approx(12.5, abs=0.05)


def test_a_wav_that_does_not_know_its_length_is_measured():
    """A recorder that writes into a pipe leaves a length of 0 or of all ones."""
    content = bytearray(wav(3))
    at = content.index(b"data") + 4
    for told in (b"\0\0\0\0", b"\xff\xff\xff\xff"):
        content[at : at + 4] = told
        assert sound_file_of(bytes(content)).seconds == pytest.approx(3)


@rows(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"%PDF-1.7 " * 50, "not a sound file that I know"),
        (b"just a text that somebody called song.mp3", "not a sound file that I know"),
        (m4a(5, handlers=(b"vide", b"soun")), "is a video"),
        (ogg_page([b"\x80theora" + bytes(40)], kind=2) + ogg_opus(2, serial=2), "is a video"),
        (m4a(5, handlers=()), "without sound"),
        (wav(1)[:20], "damaged"),
        (m4a(5)[:-30], "damaged"),
        (b"\x1a\x45\xdf\xa3" + bytes(50), "WebM"),
        (b"OggS" + bytes(5000), "without a sound"),
    ],
)
def test_what_is_no_sound_is_said_in_plain_words(content, said):
    """Empty, a wrong type, a video named audio, cut off."""
    with pytest.raises(NotAudio, match=said):
        sound_file_of(content)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_raise_anything_else(data):
    """Random bytes, and sound files with random bytes in them."""
    base = data.draw(st.sampled_from([b"", wav(0.1), ogg_opus(1), mp3(0.3), m4a(1)]))
    content = bytearray(base + data.draw(st.binary(max_size=60)))
    for _ in range(data.draw(st.integers(0, 8)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert sound_file_of(bytes(content)).seconds >= 0
    except NotAudio as error:
        assert str(error)


@rows(
    ("head", "part", "times"),
    [
        (ogg_page([_SPEEX], kind=2) + ogg_page([b"x"]), b"OggS", 6_000_000),
        (b"", ogg_page([_SKELETON], kind=2), 270_000),
        (m4a(1)[:24], b"\0\0\0\x08free", 500_000),
        (wav(0), b"junk\0\0\0\0", 500_000),
        (b"", b"ID3" + bytes(7), 2_000_000),
    ],
    ids=["pages", "streams", "boxes", "chunks", "titles"],
)
def test_a_file_of_a_million_parts_ends(head, part, times):
    """24 MB that are nothing but heads are given up, with a reason."""
    with pytest.raises(NotAudio, match=r"too many parts|damaged|without a sound|does not say"):
        sound_file_of(head + part * times)
