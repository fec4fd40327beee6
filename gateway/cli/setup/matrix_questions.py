"""Asks about Matrix, and logs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from channels.base import ChannelError
from channels.matrix.config import MatrixConfig
from gateway.cli.login import TerminalPerson
from gateway.cli.setup.config_lines import MatrixAnswers
from gateway.cli.setup.dialogue import Dialogue
from gateway.cli.setup.matrix_probe import (
    Entrance,
    enter,
    enter_by_browser,
    is_in_clear,
    is_login_valid,
    resolve,
    ways_at,
)
from gateway.cli.setup.options import Given, InitRefused
from gateway.errors import GatewayError
from gateway.routing.access import kind_of

TRIES = 4


class InitFailed(GatewayError):
    """It could not be done."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class MatrixAsked:
    """The result of `ask_matrix`. ``entrance`` is a new login, if one was needed."""

    answers: MatrixAnswers | None = None
    entrance: Entrance | None = None
    off: bool = False


def ask_matrix(
    given: Given, current: MatrixConfig | None, dialogue: Dialogue, *, state: Callable[[], Path]
) -> MatrixAsked:
    """
    Ask, and log in.

    Args:
        state: Where the daemon keeps the login of this channel.

    Raises:
        InitFailed: The login did not work.
    """
    said = any((given.matrix_user, given.matrix_homeserver, given.matrix_password))
    wanted = given.matrix if given.matrix is not None else said or None
    if wanted is None:
        proposed = dialogue.interactive if current is None else current.enabled
        wanted = dialogue.agree("Connect it to Matrix?", default=proposed)
    if not wanted:
        dialogue.note("--no-matrix")
        return MatrixAsked(off=current is not None and current.enabled)
    has_own_way = current is not None and (current.access_token is not None or current.login == "browser")
    if has_own_way and not said:
        dialogue.say("  Matrix logs in as the configuration says; init leaves that unchanged.")
        return MatrixAsked()
    return _logged_in(given, current, dialogue, state)


def matrix_id(text: str) -> str:
    """A whole Matrix id. Raises `ValueError`: it is not one."""
    probe = {"homeserver": "https://example.org", "user_id": text, "password": "-"}
    try:
        MatrixConfig.model_validate(probe)
    except ValueError:
        raise ValueError(f'{text!r} is not a whole Matrix id, such as "@bot:example.org"') from None
    if kind_of(text) != "matrix":
        raise ValueError(f'{text!r} is not a whole Matrix id, such as "@bot:example.org"')
    return text


def _logged_in(
    given: Given, current: MatrixConfig | None, dialogue: Dialogue, state: Callable[[], Path]
) -> MatrixAsked:
    ca_file = given.tls_ca_file or (str(current.tls_ca_file) if current and current.tls_ca_file else None)
    user = given.matrix_user or ""
    homeserver, password = "", given.matrix_password
    ways: Sequence[str] = ["password"]
    for attempt in range(TRIES):
        first = attempt == 0
        if not user or not first:
            proposed = user or (current.user_id if current else "")
            question = "  The bot's Matrix id (an account of its own, such as @squid:example.org)"
            user = dialogue.ask(question, proposed, check=matrix_id, flag="--matrix-user")
        else:
            user = check_option(user, matrix_id, "--matrix-user")
        if not homeserver:
            homeserver, ca_file = _homeserver(given, current, dialogue, user, ca_file)
            ways = ways_at(homeserver, ca_file) if dialogue.interactive else ways
        same = current is not None and (current.user_id, current.homeserver) == (user, homeserver)
        kept = same and current is not None and current.password is not None and first
        if (password is None or not first) and "password" in ways:
            flag = "--matrix-password-file FILE"
            empty = "if it has none" if "browser" in ways else ""
            password = dialogue.secret(
                f"  The password of {user}", flag=flag, empty="keeps the present one" if kept else empty
            )
        by_browser = password is None and not kept
        dialogue.say(f"  logging in at {homeserver} …")
        existing = current if same else None
        try:
            entrance = (
                enter_by_browser(homeserver, user, ca_file, TerminalPerson())
                if by_browser
                else _enter(existing, homeserver, user, password=password, ca_file=ca_file, state=state)
            )
        except (ChannelError, ValueError) as error:
            if not dialogue.interactive or attempt == TRIES - 1:
                raise InitFailed(f"Matrix: {error}\nNothing was written.") from error
            dialogue.say(f"  That did not work: {error}")
            continue
        dialogue.say(f"  Logged in as {user}.")
        ca_used = ca_file if homeserver.startswith("https:") else None
        return MatrixAsked(MatrixAnswers(homeserver, user, password, ca_used, by_browser), entrance)
    raise AssertionError("the last try has raised or returned")


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


def check_option(value: str, check: Callable[[str], str], flag: str) -> str:
    """Check an option's value, which is not asked for again. Raises InitRefused."""
    try:
        return check(value)
    except ValueError as error:
        raise InitRefused(f"{flag}: {error}") from error


def _homeserver(
    given: Given, current: MatrixConfig | None, dialogue: Dialogue, user: str, ca_file: str | None
) -> tuple[str, str | None]:
    """The address of the client API, asked only if it cannot be found out, and who vouches for it."""
    same_user = current is not None and current.user_id == user
    text = given.matrix_homeserver or (current.homeserver if current and same_user else "")
    text = text or user.partition(":")[2]
    for attempt in range(TRIES):
        try:
            found = resolve(text, ca_file)
        except (ChannelError, ValueError) as error:
            told = f"{text}: {error}"
            if not dialogue.interactive or attempt == TRIES - 1:
                raise InitFailed(
                    f"Matrix: {told}\n--matrix-homeserver names another address. Nothing was written."
                ) from error
            dialogue.say(f"  {told}")
            if authority := asked_authority(error, dialogue):
                ca_file = authority
                continue
            text = dialogue.ask("  The homeserver (a name or an address)", text, flag="--matrix-homeserver")
            continue
        if is_in_clear(found):
            dialogue.say(f"  Warning: the password goes to {found} unencrypted.")
        if found != text:
            dialogue.say(f"  The homeserver is {found}.")
        return found, ca_file
    raise AssertionError("the last try has raised or returned")


def _enter(
    current: MatrixConfig | None,
    homeserver: str,
    user: str,
    *,
    password: str | None,
    ca_file: str | None,
    state: Callable[[], Path],
) -> Entrance | None:
    """A new login, or None if the daemon's own is good and no other password was given."""
    known = current.password.get_secret_value() if current is not None and current.password else None
    if current is not None and password in (None, known) and is_login_valid(current, state()):
        return None
    return enter(homeserver, user, password if password is not None else known or "", ca_file)
