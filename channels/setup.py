"""
How `squidbot init` asks for an account of a kind of channel: by a `SetupForm`. A form asks, logs in and says
what to write; the gateway shows it to the person and writes it. Nothing that a form does is lasting before
`SetupLogin.keep`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError

    from channels.base import ChannelClock

TRIES = 4
"""How often a person may correct an answer."""

Config = TypeVar("Config")
Check = Callable[[str], str]
"""Gives the answer as it is used, or raises `ValueError` with what is wrong."""
Given = Mapping[str, Any]
"""The options and variables of `squidbot init` that were given, by their names."""


class SetupFailed(Exception):
    """It could not be done."""

    exit_code = 1
    temporary = False
    public = "It could not be done."


class SetupRefused(SetupFailed):
    """The set-up cannot go on with what was given."""

    exit_code = 2


class PersonAtTerminal(Protocol):
    """Whoever logs an account in."""

    def show(self, text: str) -> None:
        """Show a text."""

    async def read_line(self) -> str:
        """Return a line that the person enters; empty without a terminal."""


class Dialogue(Protocol):
    """The person, or nobody, that `squidbot init` talks to."""

    interactive: bool

    def note(self, flag: str, value: str = "", *, question: str = "") -> None:
        """Remember an answer by the option that says the same; a later one replaces it."""
        ...

    def say(self, text: str = "") -> None:
        """Tell something."""
        ...

    def ask(self, question: str, default: str = "", *, check: Check = str, flag: str = "") -> str:
        """One line; ``default`` for an empty one. ``flag`` would have answered it."""
        ...

    def secret(self, question: str, *, flag: str, empty: str = "") -> str | None:
        """A password, not shown; None for an empty answer, if ``empty`` says what that does."""
        ...

    def agree(self, question: str, *, default: bool) -> bool:
        """Yes or no."""
        ...

    def choose(self, question: str, options: Sequence[str]) -> int:
        """The number of one of several."""
        ...


@dataclass(frozen=True, slots=True)
class SecretLine:
    """A setting whose value stands in the file ``name`` of the folder ``secrets``."""

    name: str
    text: str = field(repr=False)


class SetupLogin(Protocol):
    """A login that worked."""

    def keep(self, state: Path) -> None:
        """Give it to the daemon, in the folder of the account, unless that has one."""

    def discard(self) -> None:
        """Log out again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupServices:
    """
    The gateway's side of a form.

    Args:
        person: Whoever logs in with a browser.
        state: Returns the folder of the account's documents.
    """

    clock: ChannelClock
    person: PersonAtTerminal
    state: Callable[[], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupAnswer:
    """
    The result of a form.

    Args:
        settings: Those of the account, in the order of the file; None: they stay as they are.
        address: The bot's own address; empty: the one that is configured.
        off: The account is switched off.
        login: A new login, if one was needed.
        is_unknown: Returns True if surely nobody has an address; None: nobody can tell.
    """

    settings: Mapping[str, Any] | None = None
    address: str = ""
    off: bool = False
    login: SetupLogin | None = None
    is_unknown: Callable[[str], bool] | None = None


class SetupForm(ABC, Generic[Config]):
    """
    The questions of `squidbot init` for one kind of channel.

    ``options`` name the answers that say that the account is wanted; the first is the bot's own address, the
    second the password.
    """

    kind: ClassVar[str]
    question: ClassVar[str]
    """Asks for a yes to an account of this kind."""
    owner_question: ClassVar[str]
    """Asks for the owner's own address."""
    address_flag: ClassVar[str]
    options: ClassVar[Sequence[str]] = ()
    missing_texts: ClassVar[Sequence[str]] = ("", "")
    """What to say of a missing address, and of a missing password."""
    greeted_at: ClassVar[str] = "look there"
    """Where the owner finds the first message; ``{}`` is their address."""

    def is_wanted(self, given: Given, current: Config | None) -> bool:
        """Return True if an account is given or configured."""
        named = given.get(self.kind) or any(given.get(name) for name in self.options)
        return given.get(self.kind) is not False and bool(named or current)

    def missing(self, given: Given, known: str) -> list[str]:
        """List what is missing where nobody can be asked; ``known`` is the configured address. Pure."""
        address, password = (given.get(name) for name in self.options[:2])
        lacks = (not address and not known, not password and (not known or address not in (None, known)))
        return [text for text, is_lacking in zip(self.missing_texts, lacks, strict=True) if is_lacking]

    def ask(
        self, given: Given, current: Config | None, dialogue: Dialogue, services: SetupServices
    ) -> SetupAnswer:
        """Ask, and log in. Raises `SetupFailed`: the login did not work."""
        said = any(given.get(name) for name in self.options)
        wanted = given.get(self.kind, said or None)
        enabled = current is not None and bool(getattr(current, "enabled", True))
        if wanted is None:
            wanted = dialogue.agree(
                self.question, default=dialogue.interactive if current is None else enabled
            )
        if not wanted:
            dialogue.note(f"--no-{self.kind}")
            return SetupAnswer(off=enabled)
        if current is not None and not said and (told := self.own_login(current)):
            dialogue.say(f"  {told}")
            return SetupAnswer()
        return self.log_in(given, current, dialogue, services)

    def own_login(self, current: Config) -> str:
        """Say how an account logs in of which nothing is asked; empty: it is asked."""
        return ""

    @abstractmethod
    def log_in(
        self, given: Given, current: Config | None, dialogue: Dialogue, services: SetupServices
    ) -> SetupAnswer:
        """Ask for the account, and log in. Raises `SetupFailed`."""

    @abstractmethod
    def check_address(self, text: str) -> str:
        """A person's whole address. Raises `ValueError`: it is not one."""

    def lacks_login(self, current: Config, state: Path) -> bool:
        """Return True if a person still has to log the account in (``squidbot KIND login``)."""
        return False


def check_option(value: str, check: Check, flag: str) -> str:
    """Check an option's value, which is not asked for again. Raises SetupRefused."""
    try:
        return check(value)
    except ValueError as error:
        raise SetupRefused(f"{flag}: {error}") from error


def asked_authority(error: Exception, dialogue: Dialogue) -> str:
    """Ask for the CA file if a certificate was refused for lack of it; return it or ""."""
    if "tls_ca_file" not in str(error) and "certificate is not trusted" not in str(error):
        return ""

    def there(text: str) -> str:
        path = Path(text).expanduser().absolute() if text else Path()
        if text and not path.is_file():
            raise ValueError(f"there is no file {path}")
        return str(path) if text else ""

    return dialogue.ask(
        "  If you run your own certificate authority: the file of its certificate (empty: you do not)",
        check=there,
        flag="--tls-ca-file",
    )


def complaint(error: ValidationError) -> str:
    """The first problem of an answer, in one sentence."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    return f"{name} {first['msg'].removeprefix('Value error, ')}".strip()
