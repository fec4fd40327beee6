"""Asks for an account on Matrix, and logs in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from channels.base import ChannelAuthFailed, ChannelError
from channels.matrix.config import MatrixAddresses, MatrixConfig
from channels.matrix.setup.matrix_probe import (
    VerifiedLogin,
    enter,
    enter_by_browser,
    has_login,
    is_in_clear,
    is_login_valid,
    is_unknown_user,
    login_ways_at,
    resolve,
)
from channels.setup import (
    TRIES,
    Dialogue,
    Given,
    SecretLine,
    SetupAnswer,
    SetupFailed,
    SetupForm,
    SetupServices,
    asked_authority,
    check_option,
)


class MatrixForm(SetupForm[MatrixConfig]):
    """The questions for an account on Matrix."""

    kind = "matrix"
    question = "Connect it to Matrix?"
    owner_question = "Your own Matrix id"
    address_flag = "--matrix-user"
    options = ("matrix_user", "matrix_password", "matrix_homeserver")
    missing_texts = (
        "The bot's Matrix id is missing: give --matrix-user @name:server.",
        (
            "The password of the Matrix account is missing: give --matrix-password-file FILE (or "
            "SQUIDBOT_INIT_MATRIX_PASSWORD)."
        ),
    )
    greeted_at = "accept the invitation in {}'s client"

    def own_login(self, current: MatrixConfig) -> str:
        """Return a sentence for an access token or a login by a browser."""
        has_own_way = current.access_token is not None or current.login == "browser"
        return "Matrix logs in as the configuration says; init leaves that unchanged." if has_own_way else ""

    def log_in(
        self, given: Given, current: MatrixConfig | None, dialogue: Dialogue, services: SetupServices
    ) -> SetupAnswer:
        """Find the homeserver, and log in."""
        return _logged_in(given, current, dialogue, services)

    def check_address(self, text: str) -> str:
        """A whole Matrix id."""
        return matrix_id(text)

    def lacks_login(self, current: MatrixConfig, state: Path) -> bool:
        """Return True for a login by a browser that has not happened yet."""
        return current.enabled and current.login == "browser" and not has_login(state)


def matrix_settings(
    homeserver: str,
    user_id: str,
    password: str | None,
    *,
    ca_file: str | None = None,
    by_browser: bool = False,
) -> dict[str, Any]:
    """The settings of an account; ``password`` None: the configured one stays, or ``by_browser``."""
    made: dict[str, Any] = {"enabled": True, "homeserver": homeserver, "user_id": user_id}
    if password is not None:
        made["password"] = SecretLine("matrix-password", password)
    if by_browser:
        made["login"] = "browser"
    if ca_file:
        made["tls_ca_file"] = ca_file
    return {**made, "allow_from": []}


def matrix_id(text: str) -> str:
    """A whole Matrix id. Raises `ValueError`: it is not one."""
    probe = {"homeserver": "https://example.org", "user_id": text, "password": "-"}
    try:
        MatrixConfig.model_validate(probe)
    except ValueError:
        raise ValueError(f'{text!r} is not a whole Matrix id, such as "@bot:example.org"') from None
    if MatrixAddresses().parse(text) is None:
        raise ValueError(f'{text!r} is not a whole Matrix id, such as "@bot:example.org"')
    return text


def _logged_in(
    given: Given, current: MatrixConfig | None, dialogue: Dialogue, services: SetupServices
) -> SetupAnswer:
    ca_file = given.get("tls_ca_file") or (
        str(current.tls_ca_file) if current and current.tls_ca_file else None
    )
    user = given.get("matrix_user") or ""
    homeserver, password = "", given.get("matrix_password")
    ways: Sequence[str] = ["password"]
    refusals = 0
    for attempt in range(TRIES):
        first = attempt == 0
        if not user or not (first or refusals == 1):
            proposed = user or (current.user_id if current else "")
            question = "  The bot's Matrix id (an account of its own, such as @squid:example.org)"
            user = dialogue.ask(question, proposed, check=matrix_id, flag="--matrix-user")
        else:
            user = check_option(user, matrix_id, "--matrix-user")
        if not homeserver:
            homeserver, ca_file = _homeserver(given, current, dialogue, user, ca_file)
            ways = login_ways_at(homeserver, ca_file) if dialogue.interactive else ways
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
                enter_by_browser(homeserver, user, ca_file, services.clock, services.person)
                if by_browser
                else _enter(existing, homeserver, user, password=password, ca_file=ca_file, services=services)
            )
        except (ChannelError, ValueError) as error:
            if not dialogue.interactive or attempt == TRIES - 1:
                raise SetupFailed(f"Matrix: {error}\nNothing was written.") from error
            dialogue.say(f"  That did not work: {error}")
            # What is refused twice may be the name.
            refusals = refusals + 1 if isinstance(error, ChannelAuthFailed) else 0
            continue
        dialogue.say(f"  Logged in as {user}.")
        ca_used = ca_file if homeserver.startswith("https:") else None
        return SetupAnswer(
            settings=matrix_settings(homeserver, user, password, ca_file=ca_used, by_browser=by_browser),
            address=user,
            login=entrance,
            is_unknown=partial(is_unknown_user, homeserver, tls_ca_file=ca_used),
        )
    raise AssertionError("the last try has raised or returned")


def _homeserver(
    given: Given, current: MatrixConfig | None, dialogue: Dialogue, user: str, ca_file: str | None
) -> tuple[str, str | None]:
    """The address of the client API, asked only if it cannot be found out, and who vouches for it."""
    same_user = current is not None and current.user_id == user
    text = given.get("matrix_homeserver") or (current.homeserver if current and same_user else "")
    text = text or user.partition(":")[2]
    for attempt in range(TRIES):
        try:
            found = resolve(text, ca_file)
        except (ChannelError, ValueError) as error:
            told = f"{text}: {error}"
            if not dialogue.interactive or attempt == TRIES - 1:
                raise SetupFailed(
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
    services: SetupServices,
) -> VerifiedLogin | None:
    """A new login, or None if the daemon's own is good and no other password was given."""
    known = current.password.get_secret_value() if current is not None and current.password else None
    if (
        current is not None
        and password in (None, known)
        and is_login_valid(current, services.state(), services.clock)
    ):
        return None
    return enter(homeserver, user, password if password is not None else known or "", ca_file, services.clock)
