"""Reading the log again: what is asked for and nothing else, over rotated files, harmless for a terminal."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import structlog

from gateway.errors import NotFound
from gateway.observability.logs import configure_logs
from gateway.observability.logs.log_lines import LineFilter, format_line, parse_line, parse_since
from gateway.observability.logs.log_reader import from_files, from_journal, log_files
from tests import command_line

NOW = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)


def line(level="info", minutes=0, **fields):
    at = (NOW - timedelta(minutes=minutes)).isoformat()
    return parse_line(json.dumps({"time": at, "level": level, "event": "turn.answered", **fields}))


def test_what_is_asked_for():
    """By session and turn (or how they begin), by level and above, by age; each refuses what it should."""
    one = line("warning", 10, session="matrix/!room:hs", turn="17-ab")
    for wanted in (
        LineFilter(),
        LineFilter(session="matrix/!room:hs"),
        LineFilter(session="matrix/"),
        LineFilter(turn="17"),
        LineFilter(level="info"),
        LineFilter(level="warning"),
        LineFilter(since=NOW - timedelta(minutes=10)),
    ):
        assert wanted.matches(one)
    for wanted in (
        LineFilter(session="email"),
        LineFilter(turn="18"),
        LineFilter(level="error"),
        LineFilter(since=NOW - timedelta(minutes=9)),
    ):
        assert not wanted.matches(one)
    other = parse_line("Traceback (most recent call last):\n")
    assert LineFilter().matches(other)
    assert not LineFilter(level="info").matches(other)


def test_times():
    """Spans, dates with and without a zone; anything else is told."""
    assert parse_since("90s", NOW) == NOW - timedelta(seconds=90)
    assert parse_since("1.5h", NOW) == NOW - timedelta(minutes=90)
    assert parse_since("2d", NOW) == NOW - timedelta(days=2)
    assert parse_since("2026-01-01T00:00:00+00:00", NOW) == datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_since("2026-01-01", NOW).tzinfo is not None
    for text in ("", "yesterday", "2x", "99999999999999w"):
        with pytest.raises(ValueError, match="is no time"):
            parse_since(text, NOW)


def test_a_line_for_people_steers_no_terminal():
    """Names and values on one line, a trace below, and nothing in it that is not printable."""
    text = format_line(
        line(session="s", why="two words", exception="Trace\n  x", evil="\x1b[31m", n=3, none=None)
    )
    assert "turn.answered" in text
    assert 'why="two words"' in text
    assert "\n    Trace\n" in text
    assert text.replace("\n", "").isprintable()
    for raw in ("", "{", "[]", "{}", '{"time": 5}', "\x1b[31m", '{"a":' * 5000):
        assert format_line(parse_line(raw)).replace("\n", "").isprintable()


@pytest.fixture
def rotated(tmp_path):
    """A log file that became an older one several times, kept and numbered as the settings say."""
    file = tmp_path / "logs" / "squidbot.log"
    with open(os.devnull, "w") as nowhere:
        configure_logs("info", file=file, stream=nowhere, file_bytes=1000, files_kept=3)
        for number in range(60):
            structlog.get_logger().info("turn.answered", number=number, filler="x" * 60)
        from loguru import logger

        logger.remove()
    structlog.reset_defaults()
    return file


def test_rotated_files_are_read_in_order(rotated):
    """So many as are kept, none larger than allowed, oldest line first, none missing in between."""
    files = log_files(rotated)
    assert files[-1] == rotated
    assert 3 <= len(files) <= 4
    assert all(path.stat().st_size <= 1000 and path.stat().st_mode & 0o077 == 0 for path in files)
    numbers = [json.loads(raw)["number"] for raw in from_files(rotated)]
    assert numbers == list(range(numbers[0], 60))


def test_following_goes_over_a_rotation(tmp_path):
    """What is written to the old file until it is renamed, and to the new one, each once, in order."""
    file = tmp_path / "squidbot.log"
    file.write_text('{"n": 0}\n')
    steps = iter(range(1, 4))

    def sleep(_):
        match next(steps):
            case 1:
                with file.open("a") as out:
                    out.write('{"n": 1}\n{"n":')
            case 2:
                with file.open("a") as out:
                    out.write(" 2}\n")
                file.rename(tmp_path / "squidbot.2026.log")
                file.write_text('{"n": 3}\n')
            case 3:
                return

    lines = from_files(file, follow=True, sleep=sleep)
    assert [json.loads(next(lines))["n"] for _ in range(4)] == [0, 1, 2, 3]


def test_the_journal_is_asked_where_there_is_no_file(tmp_path, monkeypatch):
    """With the unit and the time; what it says is told; without a journal a sentence says where to look."""
    program = tmp_path / "journalctl"
    program.write_text('#!/bin/sh\necho "{\\"event\\": \\"asked\\", \\"with\\": \\"$*\\"}"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    [raw] = list(from_journal("squidbot", since=NOW))
    assert "--unit squidbot --output cat" in raw
    assert f"--since @{NOW.timestamp():.6f}" in raw
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(NotFound, match="docker compose logs"):
        list(from_journal("squidbot"))


def test_the_command(rotated, tmp_path):
    """From the shell: filtered, as JSON or for people; a time that is none is told with exit code 2."""
    (tmp_path / "squidbot.yaml").write_text("gateway: {log: {file: logs/squidbot.log}}\n")
    (tmp_path / "squidbot.yaml").chmod(0o600)

    squidbot = partial(command_line.squidbot, tmp_path, "logs")

    done = squidbot("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["number"] == 59
    assert "number=59" in squidbot("--since", "1h").stdout
    nothing = squidbot("--level", "error")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert nothing.stderr.endswith("squidbot.log matches\n")
    assert squidbot("--since", "soon").returncode == 2
