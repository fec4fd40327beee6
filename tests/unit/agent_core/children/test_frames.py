"""Objects over a stream of bytes, and what is refused of them."""

from __future__ import annotations

import pytest

from agent_core.children.frames import FrameDecoder, encode_frame, failure_in, piece_text
from agent_core.children.service_child import failure_of


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
def test_frames_come_whole_however_they_are_cut(cut):
    """In order, each once, with its size."""
    frames = [{"call": 1, "text": "ü" * 40}, {}, {"end": True}]
    data = b"".join(map(encode_frame, frames))
    decoder = FrameDecoder()
    found = [
        (frame, decoder.size)
        for start in range(0, len(data), cut)
        for frame in decoder.feed(data[start : start + cut])
    ]
    assert found == [(frame, len(encode_frame(frame)) - 4) for frame in frames]


@pytest.mark.parametrize(
    "data", [(2**31).to_bytes(4), b"\0\0\0\2[]", b"\0\0\0\2{x", (200_000).to_bytes(4) + b"[" * 200_000]
)
def test_what_is_no_frame_is_refused(data):
    """Too large (before it has come), no object, no JSON, too deep."""
    with pytest.raises(ValueError, match=r"frame|property name"):
        list(FrameDecoder().feed(data))


def test_a_frame_that_is_too_large_is_not_sent():
    """It is found out at this end, where the call can still fail alone."""
    with pytest.raises(ValueError, match="a frame of 13 bytes"):
        encode_frame({"a": "bcdef"}, max_bytes=8)


@pytest.mark.parametrize("piece", [None, [], {"text": 5}])
def test_a_piece_that_is_no_text_is_refused(piece):
    """Whatever else the child says."""
    with pytest.raises(ValueError, match="was expected"):
        piece_text(piece)
    assert piece_text({"text": "said"}) == "said"


@pytest.mark.parametrize("failure", [[], {"text": 1}, {"headers": {"a": 1}}])
def test_a_failure_of_the_wrong_kind_is_refused(failure):
    """Each field is checked."""
    with pytest.raises(ValueError, match="was expected"):
        failure_in(failure)


def test_a_child_says_whether_it_may_work_later():
    """A full disk may; a sound that nobody can decode is the same the next time."""
    assert failure_of(OSError("no space left")).transport
    assert failure_of(MemoryError()).unreadable == "large"
    plain = failure_of(ValueError("no sound"))
    assert (plain.text, plain.transport, plain.unreadable) == ("no sound", False, "")
