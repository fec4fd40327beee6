"""What a sound file is and how long it lasts, whatever it says of itself."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core.voice.sound_file import NotASound, sound_file_of
from tests.sounds import m4a, mp3, ogg_opus, ogg_page, wav


@pytest.mark.parametrize(
    ("content", "kind"),
    [(wav(12.5), "wav"), (ogg_opus(12.5), "ogg"), (mp3(12.5), "mp3"), (m4a(12.5), "m4a")],
)
def test_the_length_is_that_of_what_it_holds(content, kind):
    """Four kinds, each to a twentieth of a second."""
    found = sound_file_of(content)

    assert found.kind == kind
    assert found.seconds == pytest.approx(12.5, abs=0.05)


@pytest.mark.parametrize(
    "content",
    [
        ogg_opus(14_400, granule=48_000),
        ogg_opus(7200) + ogg_opus(7200, serial=2),
        ogg_opus(7200) + b"junk" + ogg_opus(7200),
        m4a(14_400, told=44_100),
    ],
)
def test_four_hours_are_not_hidden_by_what_a_head_says(content):
    """A short length in the head, a second stream, or junk between two pages hide nothing."""
    assert sound_file_of(content).seconds == pytest.approx(14_400, rel=0.001)


def _wav_of(fmt: bytes, *others: bytes, data: int) -> bytes:
    chunks = [struct.pack("<4sI", b"fmt ", len(one)) + one for one in (fmt, *others)]
    return b"RIFF\0\0\0\0WAVE" + b"".join(chunks) + struct.pack("<4sI", b"data", data) + bytes(data)


def _swallowed(content: bytes) -> bytes:
    """The same behind heads of pages that claim what follows as their content, with a wrong checksum."""
    parts = [content[at : at + 60_000] for at in range(0, len(content), 60_000)]
    return b"".join(ogg_page([one], serial=9)[: -len(one)] + one for one in parts)


_SPEEX = b"Speex   " + bytes(28) + (700_000).to_bytes(4, "little") + bytes(40)
_VORBIS = b"\x01vorbis" + bytes(4) + b"\x01" + (48_000).to_bytes(4, "little") + bytes(12) + b"\xb8\x01"
_PACKETS = [bytes([0x78]) + b"\x01" * 9] * 250


@pytest.mark.parametrize(
    ("content", "at_least"),
    [
        (ogg_page([b"fishead\0" + bytes(50)], kind=2, serial=9) + _swallowed(ogg_opus(3600)), 3500),
        (ogg_page([_SPEEX], kind=2) + ogg_opus(3600, granule=0), 3600),
        (ogg_page([_VORBIS], kind=2) + ogg_page([b"\3", b"\5"]) + ogg_page(_PACKETS) * 1000, 600),
        (_wav_of(struct.pack("<HHIIHHH", 0x31, 1, 8000, 1_000_000_000, 65, 0, 0), data=1_625 * 600), 600),
        (_wav_of(struct.pack("<HHIIHH", 1, 1, 8000, 16_000, 2, 16),
                 struct.pack("<HHIIHH", 1, 2, 192_000, 768_000, 4, 16), data=16_000 * 100), 100),
        (m4a(1, samples=3600 * 47), 1800),
    ],
    ids=["swallowed", "chained", "vorbis", "telephone", "two heads", "samples"],
)  # fmt: skip
def test_a_file_that_claims_a_second_is_measured(content, at_least):
    """What a decoder would play counts, whichever part of the file says that it is short."""
    assert sound_file_of(content).seconds >= at_least


@pytest.mark.parametrize(
    "content",
    [
        ogg_page([b"\x7fFLAC" + bytes(40)], kind=2, serial=2)
        + ogg_opus(1)
        + ogg_page([bytes(900)], serial=2),
        ogg_page([_SPEEX[:36] + b"\xff\xff\xff\xff" + _SPEEX[40:]], kind=2),
        _wav_of(struct.pack("<HHIIHH", 0x55, 1, 8000, 4_000_000_000, 1, 0), data=1_000_000),
        _wav_of(struct.pack("<HHIIHH", 1, 1, 4_000_000_000, 4_000_000_000, 2, 16), data=1_000_000),
        m4a(1, entries=500_000),
    ],
    ids=["second stream", "rate of Speex", "coding", "rate of WAV", "entries"],
)
def test_what_cannot_be_measured_is_not_believed(content):
    """Another coding beside the one that is known, an impossible rate, a table without end."""
    with pytest.raises(NotASound, match=r"cannot tell|damaged|too many parts"):
        sound_file_of(content)


def test_a_wav_that_does_not_know_its_length_is_measured():
    """A recorder that writes into a pipe leaves a length of 0 or of all ones."""
    content = bytearray(wav(3))
    at = content.index(b"data") + 4
    for told in (b"\0\0\0\0", b"\xff\xff\xff\xff"):
        content[at : at + 4] = told
        assert sound_file_of(bytes(content)).seconds == pytest.approx(3)


@pytest.mark.parametrize(
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
    with pytest.raises(NotASound, match=said):
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
    except NotASound as error:
        assert str(error)


@pytest.mark.parametrize(
    "content",
    [
        ogg_page([]) * 900_000,
        ogg_page([b""] * 255) * 80_000,
        m4a(1)[:24] + b"\0\0\0\x08free" * 500_000,
        wav(0) + b"junk\0\0\0\0" * 500_000,
        (b"ID3" + bytes(7)) * 2_000_000,
    ],
    ids=["pages", "packets", "boxes", "chunks", "titles"],
)
def test_a_file_of_a_million_parts_ends(content):
    """24 MB that are nothing but heads are given up, with a reason."""
    with pytest.raises(NotASound, match=r"too many parts|damaged"):
        sound_file_of(content)
