"""
A disk was full for a while. Every line whose writing broke off was written again, whole, and the check called the
half ones damage all the same.
"""

from __future__ import annotations

import os

import pytest

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import durable_files
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_paging import PageMark
from agent_core.storage.storage_integrity import bad_lines

KEY = SessionKey("matrix", "!r:hs.test")


def said(number):
    return Message(role="user", content=f"Grüße {number} " + "ö" * 200, id=f"m{number}")


@pytest.fixture
def history(tmp_path):
    return HistoryFile(tmp_path / f"{KEY.file_name}.jsonl")


def broken_off(monkeypatch, history, messages, after):
    """Append to a disk that takes so many bytes more."""
    real, left = os.write, after

    def write(handle, data):
        nonlocal left
        if left <= 0:
            raise OSError(28, "No space left on device")
        taken = real(handle, bytes(data)[:left])
        left -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(durable_files.os, "write", write)
        with pytest.raises(OSError):
            history.append(messages, PageMark)


@pytest.mark.parametrize("after", [[1], [40], [45, 300], [300, 20, 0, 7], [700]])
def test_written_again_is_whole(monkeypatch, history, after):
    """However often it broke off, and wherever, within a character too."""
    history.append([said(0)], PageMark)
    for count in after:
        broken_off(monkeypatch, history, [said(1), said(2)], count)
    history.append([said(1), said(2)], PageMark)
    raw = history.path.read_bytes()
    assert len(raw.splitlines()) > 3
    assert bad_lines(history.path) == []
    history.path.write_bytes(raw)
    assert [message.id for message in history.read(
        cursor=0, max_messages=None, max_chars=None, hint=PageMark()).messages] == ["m0", "m1", "m2"]  # fmt: skip


def test_a_half_line_that_was_not_written_again_is_damage(monkeypatch, history):
    """The control: what stands nowhere else is lost, and so is a line that was changed in its middle."""
    history.append([said(0)], PageMark)
    broken_off(monkeypatch, history, [said(1)], 60)
    history.append([said(2)], PageMark)
    assert len(bad_lines(history.path)) == 1
    history.append([said(1)], PageMark)
    assert bad_lines(history.path) == []
    lines = history.path.read_bytes().splitlines(keepends=True)
    history.path.write_bytes(b"".join([lines[0], lines[2].replace(b'"role"', b"#role#"), *lines[2:]]))
    assert len(bad_lines(history.path)) == 1
