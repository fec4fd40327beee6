"""The demo's prompt for a person, and the tour that shows the main features by itself."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from devservers.errors import DevServerError
from gateway.system.terminal_text import plain_text

if TYPE_CHECKING:
    from email.message import EmailMessage

    from devservers.matrix_peer import RoomEvent
    from gateway.cli.demo import Demo

_CHECK_EVERY_S = 0.5
_SETTLE_S = 0.3
_OPEN = ("ready", "running", "answered")
_HELP = """\
  anything          goes to the bot through the Matrix room
  !help             what the bot does without a model: !search, !remind, !undo, !retry, !continue …
  /mail TEXT        sends the bot a mail and shows its answer
  /voice TEXT       speaks it as a voice message, if espeak-ng is installed
  /task             asks the bot to read a page of this machine, write a file and run a command;
                    the command needs your approval, because the bot has read a page
  /yes              approves what the bot asked last
  /kill             kills the daemon with SIGKILL and starts it again: nothing is lost;
                    try it while the bot thinks, after  !slow 5
  /console          gives you a link to a page: what goes on, what waits for your yes, a chat
  /status           what the daemon says of itself
  /quit             ends everything"""
TOUR = (
    "hello",
    "remember that my favourite colour is green",
    "/mail What do you know about me?",
    "/kill",
    "what do you know about me?",
    "/task",
    "/yes",
    "!did",
    "!files undo 1",
    "/status",
)
_QUESTION = re.compile(r"!approve (a[0-9a-f]{6})\b")
"""How the bot says by which name a call is approved."""
_Found = TypeVar("_Found")


def converse(demo: Demo, *, tour: bool) -> int:
    """
    Talk until the person leaves or the tour is over.

    Without a terminal the lines of the standard input are said; if there are none, the tour is.

    Args:
        tour: Take the tour whatever the standard input has.

    Returns:
        0, or 1 if an answer did not come.
    """
    talk = _Talk(demo, typing=sys.stdin.isatty() and not tour)
    if talk.typing:
        return talk.prompt()
    lines = [] if tour else [line.strip() for line in sys.stdin]
    return talk.read_out([line for line in lines if line] or TOUR)


class _Talk:
    """One conversation: what was typed ahead, and whether an answer is still owed."""

    def __init__(self, demo: Demo, *, typing: bool) -> None:
        self.typing = typing
        self._demo = demo
        self._bot = f"@bot:{demo.synapse.server_name}"
        self._ahead: deque[str] = deque()
        self._owed = False
        self._asked = ""

    def prompt(self) -> int:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - makes the arrow keys work at the prompt
        while True:
            try:
                line = self._next_line()
            except (EOFError, KeyboardInterrupt):
                print()
                return 0
            if line in {"/quit", "/exit"}:
                return 0
            try:
                self._handle(line)
            except KeyboardInterrupt:
                print("\n     (no longer waiting)")

    def read_out(self, lines: Iterable[str]) -> int:
        missed = False
        for line in lines:
            print(f"alice> {line}", flush=True)
            if line in {"/quit", "/exit"}:
                break
            missed |= not self._handle(line)
        return 1 if missed else 0

    def _next_line(self) -> str:
        if not self._ahead:
            with self._listening():
                return input("alice> ").strip()
        line = self._ahead.popleft()
        print(f"alice> {line}", flush=True)
        return line

    def _handle(self, line: str) -> bool:
        """Do what a line says; false if something went wrong, which has been told."""
        try:
            return self._obey(line)
        except (DevServerError, OSError) as error:
            print(f"     ({error})\n{self._demo.daemon.log_tail(5)}")
            return False

    def _obey(self, line: str) -> bool:
        command, _, rest = line.partition(" ")
        shown: dict[str, Callable[[], None]] = {
            "": self._show_late,
            "/help": lambda: print(_HELP),
            "/status": self._show_status,
            "/console": lambda: print(f"     {self._demo.console_link()}"),
            "/kill": self._kill,
        }
        asked: dict[str, Callable[[], bool]] = {
            "/mail": lambda: self._mail(rest or "Hello!"),
            "/voice": lambda: self._speak(rest or "Hello! What can you do for me?"),
            "/task": self._give_task,
            "/yes": self._approve,
        }
        if command in asked:
            return asked[command]()
        if command in shown:
            shown[command]()
        elif command.startswith("/"):
            print(f"     There is no {command} here.\n{_HELP}")
        else:
            return self._say(line)
        return True

    def _give_task(self) -> bool:
        line = f"read {self._demo.page} into squids.txt and count its words"
        print(f"     (says: {line})", flush=True)
        return self._say(line)

    def _speak(self, text: str) -> bool:
        from gateway.cli.demo.tour_material import SpeechUnavailable, speak  # noqa: PLC0415 - the demo alone needs it

        try:
            return self._say(text, by=lambda: speak(self._demo.alice, self._demo.room, text))
        except SpeechUnavailable as error:  # the log of the daemon says nothing of that
            print(f"     ({error})")
            return False

    def _kill(self) -> None:
        started = time.monotonic()
        self._demo.kill_daemon()
        self._demo.wait_until_ready(print)
        took_s = time.monotonic() - started
        print(f"     (killed, started again and ready after {took_s:.1f} s)", flush=True)

    def _approve(self) -> bool:
        """Say yes to the last question; the word on that comes first, then what came of it."""
        if not self._asked:
            print("     The bot has asked nothing.")
            return True
        line, self._asked = f"!approve {self._asked}", ""
        print(f"     (says: {line})", flush=True)
        if not self._say(line):
            return False
        started = time.monotonic()
        answer = self._wait(self._next_message)
        if answer is None:
            return False
        _show("bot", answer.body, time.monotonic() - started, "Matrix")
        return True

    # ── asking and waiting ──
    def _say(self, text: str, *, by: Callable[[], object] | None = None) -> bool:
        """Say a text, or do what says it, and show what comes back."""
        self._show_late()
        started = time.monotonic()
        late = self._owed
        if by is None:
            self._owed = True
            self._demo.alice.send(self._demo.room, text)
        else:
            by()
            self._owed = True
        while True:
            answer = self._wait(self._next_message)
            if answer is None:
                return False
            _show("bot", answer.body, time.monotonic() - started, "Matrix")
            if (question := _QUESTION.search(answer.body)) is not None:
                self._asked = question[1]
            # After one that was not waited for, the next answer need not be the one to this.
            if not late or not (self._is_working() or self._has_message()):
                self._owed = False
                return True

    def _mail(self, text: str) -> bool:
        started = time.monotonic()
        peer = self._demo.mail.peer("alice")
        sent = peer.send(self._demo.mail.address("bot"), "A question", text)

        def answer_within(limit_s: float) -> EmailMessage:
            return peer.wait_for(lambda mail: sent in str(mail.get("In-Reply-To", "")), limit_s)

        answer = self._wait(answer_within)
        if answer is None:
            return False
        from devservers.mail_peer import text_of  # noqa: PLC0415 - the demo alone needs it

        print(f"     From: {answer['From']}   Subject: {answer['Subject']}")
        _show("bot", text_of(answer).strip(), time.monotonic() - started, "mail")
        return True

    def _next_message(self, limit_s: float) -> RoomEvent:
        return self._demo.alice.wait_for_event(self._is_answer, limit_s)

    def _has_message(self) -> bool:
        """Return True if a message of the bot has arrived and was not shown."""
        self._demo.alice.sync(0)
        return any(self._is_answer(event) for event in self._demo.alice.pending)

    def _is_answer(self, event: RoomEvent) -> bool:
        said = (event.type, event.sender, event.room_id)
        return said == ("m.room.message", self._bot, self._demo.room)

    def _wait(self, look: Callable[[float], _Found]) -> _Found | None:
        """Return the result of ``look``, also over a restart; None, after a message, if nothing arrives."""
        give_up_at = time.monotonic() + 120.0
        while True:
            try:
                return look(_CHECK_EVERY_S)
            except TimeoutError as error:
                if time.monotonic() > give_up_at:
                    print(f"     (no answer: {error})\n{self._demo.daemon.log_tail(5)}")
                    return None
            self._read_ahead()

    def _read_ahead(self) -> None:
        """Pull the plug if that was typed while waiting; anything else is for afterwards."""
        while self.typing and select.select([sys.stdin], [], [], 0)[0]:
            typed = os.read(sys.stdin.fileno(), 4096).decode(errors="replace")
            if not typed:
                self._ahead.append("/quit")
                return
            for line in typed.splitlines():
                if line.strip() == "/kill":
                    self._kill()
                else:
                    self._ahead.append(line.strip())

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Show messages of the bot, such as reminders, while the person thinks or types."""
        done = threading.Event()

        def listen() -> None:
            while not done.wait(0.5):
                with contextlib.suppress(DevServerError, OSError):
                    self._show_late(at_prompt=True)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _show_late(self, *, at_prompt: bool = False) -> None:
        """Answers that nobody waited for any more, and proactive messages."""
        self._demo.alice.sync(0)
        shown = False
        with contextlib.suppress(TimeoutError):
            while True:
                text = plain_text(self._next_message(0).body)
                why = "late" if self._owed else "proactive"
                print("\r\033[K" * at_prompt + f"     ({why})\n  bot> {text}")
                shown = True
        if shown and at_prompt:
            print(f"alice> {_typed()}", end="", flush=True)
        if shown and self._owed and not self._is_working():
            self._owed = False

    def _is_working(self) -> bool:
        """Return True if the daemon still has messages to answer, or cannot be asked."""
        time.sleep(_SETTLE_S)
        try:
            inbox = self._demo.status()["work"]["inbox"]
        except (OSError, ValueError, KeyError):
            return True
        return any(inbox.get(state) for state in _OPEN)

    def _show_status(self) -> None:
        if not self.typing:
            self._is_working()  # the last answer is on its way to the books
        status = self._demo.status()
        for name, channel in status.get("channels", {}).items():
            print(f"     {name:<10} {channel.get('state')}  {channel.get('detail', '')}".rstrip())
        for box in ("inbox", "outbox"):
            counts = status.get("work", {}).get(box, {})
            told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
            print(f"     {box:<10} {told or 'empty'}")


def _typed() -> str:
    reader = sys.modules.get("readline")
    return str(reader.get_line_buffer()) if reader is not None else ""


def _show(who: str, text: str, took_s: float, way: str) -> None:
    first, *rest = plain_text(text).splitlines() or [""]
    print(f"  {who}> {first}")
    for line in rest:
        print(f"       {line}".rstrip())
    print(f"     ({way}, {took_s:.2f} s)", flush=True)
