"""The demo's conversation: a prompt for a person, or a tour that shows the main things by itself."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.demo import Demo

__all__ = ["TOUR", "converse"]

_ANSWER_LIMIT_S = 120.0
_HELP = """\
  anything          goes to the bot through the Matrix room
  /mail TEXT        sends the bot a mail and shows its answer
  /kill             kills the daemon with SIGKILL and starts it again: nothing is lost
  /status           what the daemon says of itself
  /quit             ends everything"""
TOUR = (
    "hello",
    "remember that my favourite colour is green",
    "/mail What do you know about me?",
    "/kill",
    "what do you know about me?",
    "/status",
)


def converse(demo: Demo, *, tour: bool) -> int:
    """
    Talk until the person leaves or the tour is over.

    Without a terminal the lines of the standard input are said; if there are none, the tour is.

    Returns:
        0, or 1 if an answer did not come.
    """
    if not tour:
        return _prompt(demo)
    lines = [] if sys.stdin.isatty() else [line.strip() for line in sys.stdin]
    missed = False
    for line in [line for line in lines if line] or TOUR:
        print(f"alice> {line}", flush=True)
        if line in {"/quit", "/exit"}:
            break
        missed |= not _handle(demo, line)
    return 1 if missed else 0


def _prompt(demo: Demo) -> int:
    while True:
        try:
            line = input("alice> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if line in {"/quit", "/exit"}:
            return 0
        try:
            if line:
                _handle(demo, line)
        except KeyboardInterrupt:
            print("\n(no longer waiting for the answer)")


def _handle(demo: Demo, line: str) -> bool:
    command, _, rest = line.partition(" ")
    match command:
        case "/help":
            print(_HELP)
        case "/status":
            _show_status(demo)
        case "/kill":
            started = time.monotonic()
            demo.kill_daemon()
            demo.wait_until_ready(print)
            print(f"     (killed, started again and ready after {time.monotonic() - started:.1f} s)")
        case "/mail":
            return _mail(demo, rest or "Hello!")
        case _ if command.startswith("/"):
            print(f"     There is no {command} here.\n{_HELP}")
        case _:
            return _say(demo, line)
    return True


def _say(demo: Demo, text: str) -> bool:
    started = time.monotonic()
    bot = f"@bot:{demo.synapse.server_name}"
    try:
        demo.alice.send(demo.room, text)
        answer = demo.alice.wait_for_message(
            lambda event: event.sender == bot and event.room_id == demo.room, _ANSWER_LIMIT_S
        )
    except (TimeoutError, OSError) as error:
        print(f"     (no answer: {error})\n{demo.daemon.log_tail(5)}")
        return False
    _show("bot", answer.body, time.monotonic() - started, "Matrix")
    return True


def _mail(demo: Demo, text: str) -> bool:
    started = time.monotonic()
    peer = demo.mail.peer("alice")
    try:
        sent = peer.send(demo.mail.address("bot"), "A question", text)
        answer = peer.wait_for(lambda mail: sent in str(mail.get("In-Reply-To", "")), _ANSWER_LIMIT_S)
    except (TimeoutError, OSError) as error:
        print(f"     (no answer by mail: {error})\n{demo.daemon.log_tail(5)}")
        return False
    from devservers.mail_peer import text_of  # noqa: PLC0415 - the demo alone needs it

    print(f"     From: {answer['From']}   Subject: {answer['Subject']}")
    _show("bot", text_of(answer).strip(), time.monotonic() - started, "mail")
    return True


def _show(who: str, text: str, took_s: float, way: str) -> None:
    first, *rest = text.splitlines() or [""]
    print(f"  {who}> {first}")
    for line in rest:
        print(f"       {line}")
    print(f"     ({way}, {took_s:.2f} s)", flush=True)


def _show_status(demo: Demo) -> None:
    status = demo.status()
    for name, channel in status.get("channels", {}).items():
        print(f"     {name:<10} {channel.get('state')}  {channel.get('detail', '')}")
    for box in ("inbox", "outbox"):
        counts = status.get("work", {}).get(box, {})
        print(f"     {box:<10} " + ", ".join(f"{count} {state}" for state, count in counts.items() if count))
