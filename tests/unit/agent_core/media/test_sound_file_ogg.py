"""How long an Ogg file of Opus is and how loud, told by its pages alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_core.media.sound_file import WAVEFORM_MAX, opus_in, waveform_of
from agent_core.media.speech import spoken_of
from devservers.speech import opus_of, wav_of
from tests.sounds import ogg_page


@pytest.mark.parametrize("seconds", [0.1, 1.0, 61.5])
def test_the_duration_is_that_of_the_samples(seconds):
    """To the frame, over any number of pages; the waveform has at most a hundred bars up to the loudest value."""
    sound = opus_in(opus_of(seconds))
    assert sound is not None
    assert sound.duration_s == pytest.approx(seconds, abs=0.01)
    assert 1 <= len(sound.waveform) <= 100
    assert max(sound.waveform) == WAVEFORM_MAX
    assert min(sound.waveform) == 0


def test_a_wav_of_a_stream_is_read_to_its_end():
    """Its header says that it is endless; what is there counts."""
    media_type, sound = spoken_of(wav_of(2.0))
    assert media_type == "audio/wav"
    assert sound is not None
    assert sound.duration_s == pytest.approx(2.0)
    assert sound.waveform[-1] > sound.waveform[10] > sound.waveform[0]  # the tone swells


@pytest.mark.parametrize(
    "content",
    [b"", b"OggS", b"OggS" + bytes(500), opus_of(1).replace(b"OpusHead", b"OpusHeax"), opus_of(1)[:90]],
)
def test_of_anything_else_nothing_is_said(content):
    """Nothing, half of a page, another codec, an end before the sound."""
    assert opus_in(content) is None


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"error": 1}', b"RIFFxxxxAVI "])
def test_what_is_no_sound_is_refused(content):
    """A page or an error with status 200 is never sent to people as a voice message."""
    with pytest.raises(ValueError, match="neither"):
        spoken_of(content)


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(0, 3000))
def test_damaged_sounds_raise_nothing(noise, at):
    """Whatever stands in the middle of a file, it has a sound or none."""
    good = opus_of(1.0)
    opus_in(good[:at] + noise + good[at:])
    wave = wav_of(0.2)
    spoken_of(wave[:12] + noise + wave[12 + at % 40 :])


@pytest.mark.parametrize(
    ("head", "part", "times"),
    [
        (ogg_page([b"OpusHead" + bytes(11)]), ogg_page([b""] * 255), 20_000),
        (ogg_page([b"OpusHead" + bytes(11)]) + ogg_page([b"x"] * 2), ogg_page([]), 200_000),
        (wav_of(0.1)[:36], b"junk\0\0\0\0", 500_000),
        (wav_of(0.1)[:24] + b"\1\0\0\0\2\0\0\0" + wav_of(0.1)[32:44], b"\0", 1_000_000),
    ],
    ids=["packets", "pages", "chunks", "a sample a second"],
)
def test_a_sound_that_is_nothing_but_heads_is_a_file_like_any_other(head, part, times):
    """The event loop waits while a provider's sound is looked at, so what is looked at has a bound."""
    assert spoken_of(head + part * times)[1] is None


def test_a_flat_sound_has_a_flat_waveform():
    """No level, one level, many the same: nothing is divided by zero."""
    assert waveform_of([]) == ()
    assert waveform_of([7]) == (0,)
    assert set(waveform_of([5] * 500)) == {0}
