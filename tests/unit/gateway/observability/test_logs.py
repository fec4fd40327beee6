"""Log lines: one way in, inert text, never an exception."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import stat
import warnings

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.logs import adopt_library_loggers, dropped_lines
from gateway.system.terminal_text import plain_line, plain_text
from tests.log_lines import CANARY, lines_of, logging_to, put_back_afterwards


@pytest.fixture(autouse=True)
def put_back():
    """Leaves the process's logging as it was."""
    with put_back_afterwards():
        yield


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestPaths:
    def test_an_event_is_one_line_of_json(self):
        """Time, level and event come first, the rest as it was given."""
        stream = logging_to(format="json")
        structlog.get_logger("x").info("message.accepted", inbox=3, channel="matrix")
        text = stream.getvalue()
        assert text.startswith('{"time":"') and text.count("\n") == 1
        assert json.loads(text) | {"time": 0} == {
            "time": 0,
            "level": "info",
            "event": "message.accepted",
            "inbox": 3,
            "channel": "matrix",
        }

    def test_auto_means_text_on_a_terminal_and_json_elsewhere(self, monkeypatch):
        """People get colours, journals get JSON."""
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        terminal, pipe = logging_to(Terminal()), None
        structlog.get_logger().warning("a.b", n=1)
        pipe = logging_to()
        structlog.get_logger().warning("a.b", n=1)
        assert "\x1b[33mwarning" in terminal.getvalue()
        assert lines_of(pipe)[0]["n"] == 1

    def test_levels_are_filtered(self):
        """What is below the level costs nothing and is not written."""
        stream = logging_to(level="warning", format="json")
        structlog.get_logger().info("a.b")
        structlog.get_logger().error("c.d")
        assert [line["event"] for line in lines_of(stream)] == ["c.d"]

    def test_lines_of_libraries_carry_the_session(self):
        """The bridge re-emits stdlib lines with the context in which they were made."""
        stream = logging_to(format="json")
        structlog.contextvars.bind_contextvars(session="matrix/x", turn="t1")
        logging.getLogger("some.library").warning("lost %s of %d", "one", 3)
        line = lines_of(stream)[0]
        assert (line["event"], line["logger"], line["message"]) == (
            "library.logged",
            "some.library",
            "lost one of 3",
        )
        assert (line["session"], line["turn"]) == ("matrix/x", "t1")

    def test_exceptions_are_text_in_both_ways_in(self):
        """Tracebacks arrive, from us and from libraries, without the values of variables."""
        stream = logging_to(format="json")

        def fails():
            password = CANARY  # noqa: F841 - the trap
            raise ValueError("broken")

        try:
            fails()
        except ValueError:
            structlog.get_logger().exception("a.failed")
            logging.getLogger("lib").exception("failed")
        ours, theirs = lines_of(stream)
        assert "ValueError: broken" in ours["exception"] and "ValueError: broken" in theirs["exception"]
        assert "c4n4ry" not in stream.getvalue()

    def test_warnings_of_python_arrive(self):
        """A deprecation in a library is a log line, not noise on stderr."""
        stream = logging_to(format="json")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(False)
            logging.captureWarnings(True)
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        assert "DeprecationWarning: old" in lines_of(stream)[0]["message"]

    def test_libraries_that_log_bodies_stay_quiet(self):
        """At DEBUG these write message bodies; they stay at WARNING whatever our level is."""
        stream = logging_to(level="debug", format="json")
        for name in ("nio.rooms", "aioimaplib.protocol", "aiohttp.access", "LiteLLM", "mail.log"):
            logging.getLogger(name).info("body")
        assert stream.getvalue() == ""

    def test_handlers_of_libraries_are_taken_away(self):
        """A library that brings its own handler would write each line twice."""
        stream, own = logging_to(format="json"), io.StringIO()
        library = logging.getLogger("LiteLLM")
        library.addHandler(logging.StreamHandler(own))
        library.propagate = False
        adopt_library_loggers()
        library.warning("once")
        assert own.getvalue() == "" and len(lines_of(stream)) == 1

    def test_configuring_again_replaces(self):
        """A second call leaves one destination, not two."""
        first, second = logging_to(format="json"), logging_to(format="json")
        structlog.get_logger().info("a.b")
        assert first.getvalue() == "" and len(lines_of(second)) == 1


class TestInertText:
    NASTY = "{x} {0} {extra[line]} <red>r</red> %s %(x)s \x1b[31m\x07 \r\n{'fake': 'line'} \u202e \ud800 \0"

    @pytest.mark.parametrize("form", ["json", "text"])
    def test_text_that_people_write_is_never_a_template(self, form):
        """Braces, markup and line breaks arrive as they are, on one line."""
        stream, before = logging_to(format=form), dropped_lines()
        structlog.get_logger().info("a.b", text=self.NASTY)
        structlog.get_logger().info(self.NASTY)
        logging.getLogger("lib").warning(self.NASTY)
        assert stream.getvalue().count("\n") == 3
        assert "{extra[line]}" in stream.getvalue()
        assert dropped_lines() == before

    def test_control_characters_do_not_reach_the_terminal(self):
        """No escape sequence and no line of its own comes out of a text."""
        stream = logging_to(format="text")
        structlog.get_logger().info("a.b", text=self.NASTY, **{"k\x1b": 1})
        try:
            raise ValueError("\x1b]0;title\x07\nERROR forged")
        except ValueError:
            structlog.get_logger().exception("a.failed")
        assert "\x1b" not in stream.getvalue() and "\x07" not in stream.getvalue()
        assert "\nERROR" not in stream.getvalue()

    @given(st.text(st.characters(), max_size=200))
    def test_any_text_is_one_line(self, text):
        """Whatever is logged, the line is one line."""
        assert len(plain_line(text).splitlines()) <= 1
        assert plain_line(text).isprintable()
        assert all(line.isprintable() for line in plain_text(text).split("\n"))

    def test_values_that_no_json_can_hold_are_still_written(self):
        """Objects, bytes, huge numbers, deep nesting: the line comes."""
        stream = logging_to(format="json")
        deep = []
        deep.append(deep)
        structlog.get_logger().info(
            "a.b", o=object(), b=b"x", n=10**30, deep=deep, m={1: {2}}, nan=float("nan"), p=os
        )
        assert lines_of(stream)[0]["n"] == 10**30


class TestNeverRaises:
    def test_an_object_whose_text_cannot_be_made_costs_only_the_line(self):
        """A broken __str__ in a log call must not end the task that logs."""

        class Broken:
            def __str__(self):
                raise RuntimeError("no")

            __repr__ = __str__

        stream, before = logging_to(format="json"), dropped_lines()
        logging.getLogger("lib").warning("%s", Broken())
        logging.getLogger("lib").warning(Broken())
        assert dropped_lines() == before + 2
        structlog.get_logger().info("a.b")
        assert lines_of(stream)[-1]["event"] == "a.b"

    def test_arguments_that_do_not_fit_keep_their_line(self):
        """A library's wrong template is shown raw."""
        stream = logging_to(format="json")
        logging.getLogger("lib").warning("%d things", "three")
        assert lines_of(stream)[0]["message"] == "%d things ('three',)"

    def test_logging_while_a_line_is_written_does_not_lock_up(self):
        """loguru refuses re-entrant calls with an exception; here the inner line is lost and the outer one comes."""

        class LogsWhileWritten(io.StringIO):
            def write(self, text):
                logging.getLogger("lib").warning("inner")
                return super().write(text)

        stream, before = logging_to(LogsWhileWritten(), format="json"), dropped_lines()
        structlog.get_logger().info("outer")
        assert [line["event"] for line in lines_of(stream)] == ["outer"]
        assert dropped_lines() == before + 1

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")
    def test_a_full_disk_under_one_destination_stops_nothing(self, tmp_path):
        """Whichever destination is full: its lines are counted, the other one and the program go on."""
        with open("/dev/full", "w") as full:
            logging_to(full, format="json", file=tmp_path / "x.log")
            before = dropped_lines()
            structlog.get_logger().info("a.b")
            assert dropped_lines() == before + 1
            with contextlib.suppress(OSError):
                full.close()
        assert "a.b" in (tmp_path / "x.log").read_text()

        class FullFile(io.StringIO):
            def write(self, text):
                raise OSError(errno.ENOSPC, "No space left on device")

        from loguru import logger

        stream = logging_to(format="json")
        logger.add(FullFile(), format=lambda _record: "x", catch=False)
        structlog.get_logger().info("c.d")
        assert dropped_lines() == before + 2
        assert [line["event"] for line in lines_of(stream)] == ["c.d"]


class TestFile:
    def test_the_file_is_for_the_owner_alone_and_holds_json(self, tmp_path):
        """Whatever the umask; the folder is made, too."""
        old = os.umask(0)
        try:
            logging_to(format="text", file=tmp_path / "logs" / "squidbot.log")
            structlog.get_logger().info("a.b", n=1)
        finally:
            os.umask(old)
        file = tmp_path / "logs" / "squidbot.log"
        assert json.loads(file.read_text())["n"] == 1
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
