"""
Asks a person in any terminal: lines in, lines out, nothing drawn. `Terminal` asks on the standard input;
`UnattendedDialogue` takes what is proposed, which is what ``--yes`` means. Both end by `Cancelled` when the
person goes away.
"""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Sequence

from channels.setup import Check, SetupRefused
from gateway.cli.setup.options import clean, clean_secret
from gateway.errors import GatewayError
from gateway.system.terminal_text import plain_text


class Cancelled(GatewayError):
    """The set-up was interrupted. Nothing was written."""

    exit_code = 130


class Terminal:
    """A person at a terminal, or a file of answers."""

    interactive = True

    def __init__(self) -> None:
        self._answered: dict[str, tuple[str, str]] = {}

    def note(self, flag: str, value: str = "", *, question: str = "") -> None:
        """Remember an answer by the option that says the same; a later one replaces it."""
        self._answered[question or flag] = flag, value

    def repeat(self, words: Sequence[str]) -> str:
        """Return these words of a command line with the answers, but no secrets; empty: there are none."""
        flags = {flag for flag, _ in self._answered.values()}
        kept: list[str] = []
        skips = False
        for word in words:
            flag, _, value = word.partition("=")
            if flag in flags:
                skips = not value
            elif word.startswith("--") or not skips:
                kept.append(word)
                skips = False
        given = [word for flag, value in self._answered.values() for word in (flag, value) if word]
        return shlex.join([*kept, *given]) if given else ""

    def say(self, text: str = "") -> None:
        """Tell something; what others have written cannot steer the terminal."""
        sys.stdout.write(plain_text(text) + "\n")
        sys.stdout.flush()

    def ask(self, question: str, default: str = "", *, check: Check = str, flag: str = "") -> str:
        """Ask until the answer is valid."""
        shown = f"{question} [{default}]: " if default else f"{question}: "
        while True:
            try:
                answer = check(clean(self._line(shown), "the answer") or default)
            except ValueError as error:
                self.say(f"  {error}")
                continue
            if flag and answer:
                self.note(flag, answer, question=question if flag == "--owner" else "")
            return answer

    def secret(self, question: str, *, flag: str, empty: str = "") -> str | None:
        """Ask without showing what is typed."""
        shown = f"{question} (not shown{f'; empty {empty}' if empty else ''}): "
        while True:
            typed = self._hidden(shown)
            if empty and not typed.strip():
                return None
            try:
                return clean_secret(typed, "the answer")
            except ValueError as error:
                self.say(f"  {error}")

    def agree(self, question: str, *, default: bool) -> bool:
        """Ask until it is yes or no."""
        while True:
            word = self._line(f"{question} [{'Y/n' if default else 'y/N'}]: ").strip().lower()
            if word in ("", "y", "yes", "n", "no"):
                return default if not word else word[0] == "y"
            self.say("  yes or no, please")

    def choose(self, question: str, options: Sequence[str]) -> int:
        """Ask for a number."""
        for number, option in enumerate(options, 1):
            self.say(f"  {number}. {option}")
        while True:
            word = self._line(f"{question} [1]: ").strip() or "1"
            if word.isascii() and word.isdigit() and 1 <= int(word[:6]) <= len(options):
                return int(word) - 1
            self.say(f"  a number from 1 to {len(options)}, please")

    def _line(self, shown: str) -> str:
        sys.stdout.write(plain_text(shown))
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            self.say()
            raise Cancelled("the input has ended; nothing was written")
        return line.removesuffix("\n")

    def _hidden(self, shown: str) -> str:
        if not sys.stdin.isatty():
            return self._line(shown)
        try:
            return getpass.getpass(shown)
        except EOFError as error:
            self.say()
            raise Cancelled("the input has ended; nothing was written") from error


class UnattendedDialogue:
    """Nobody is there, so every default is taken."""

    interactive = False

    def note(self, flag: str, value: str = "", *, question: str = "") -> None:
        """Nothing was asked."""

    def say(self, text: str = "") -> None:
        """Tell something."""
        sys.stdout.write(plain_text(text) + "\n")
        sys.stdout.flush()

    def ask(self, question: str, default: str = "", *, check: Check = str, flag: str = "") -> str:
        """Take the default."""
        if not default:
            raise SetupRefused(f"{question} is missing: give {flag}")
        try:
            return check(default)
        except ValueError as error:
            raise SetupRefused(f"{flag or question}: {error}") from error

    def secret(self, question: str, *, flag: str, empty: str = "") -> str | None:
        """Answer nothing, or refuse."""
        if empty:
            return None
        raise SetupRefused(f"{question} is missing: give {flag}")

    def agree(self, question: str, *, default: bool) -> bool:
        """Take the default."""
        return default

    def choose(self, question: str, options: Sequence[str]) -> int:
        """Take the first one."""
        return 0
