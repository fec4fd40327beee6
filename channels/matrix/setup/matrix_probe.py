"""
Finds the homeserver and logs in; nothing is written yet. The login that works is kept and handed to the
daemon (`VerifiedLogin.keep`), so a set-up leaves one device in the account and not two; one that is not
wanted after all is logged out (`VerifiedLogin.discard`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from pydantic import ValidationError

from channels.base import ChannelClock, ChannelError, ChannelMisconfigured, ChannelUnavailable
from channels.matrix.assembly import connect_by_nio
from channels.matrix.client.browser_login import TOKENS, log_in_by_browser, log_out, login_ways, token_store
from channels.matrix.client.homeserver import (
    CLIENT,
    Homeserver,
    HttpAnswer,
    LinkBroken,
    channel_error,
    quote_path,
    unreachable,
)
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.setup import PersonAtTerminal, complaint

_LIMIT_S = 15.0
_LOGIN_LIMIT_S = 40.0
_PAUSES = 3
_MAX_PAUSE_S = 60.0
_LOGINS = ("session.json", TOKENS)
_NOBODY = "@nobody:example.org"


@dataclass(frozen=True, slots=True)
class VerifiedLogin:
    """A login that worked; what it consists of is in ``folder``."""

    config: MatrixConfig
    folder: Path
    clock: ChannelClock

    def keep(self, state: Path) -> None:
        """Give the login to the daemon, unless it has one already; then this one is not needed."""
        [name] = (name for name in _LOGINS if (self.folder / name).exists())
        if (state / name).exists():
            self.discard()
            return
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.move(self.folder / name, state / name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def discard(self) -> None:
        """Log out again. A homeserver that is away now keeps a device without keys, which does no harm."""
        with suppress(ChannelError, LinkBroken):
            anyio.run(self._log_out)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _log_out(self) -> None:
        async with _connected(self.config) as homeserver:
            if tokens := token_store(self.config, self.folder).load():
                await log_out(self.config, homeserver, tokens)
                return
            await MatrixLogin(self.config, homeserver, self.folder, self.clock).enter()
            await homeserver.request("POST", f"{CLIENT}/logout", {}, timeout_s=_LIMIT_S)


def enter(
    homeserver: str, user_id: str, password: str, tls_ca_file: str | None, clock: ChannelClock
) -> VerifiedLogin:
    """Log in. Raises `ChannelError` or `ValueError`: it failed; the text says why in plain words."""
    config = _config(homeserver, user_id, password, tls_ca_file)
    folder = Path(tempfile.mkdtemp(prefix="squidbot-init-"))
    try:
        anyio.run(partial(_enter, config, folder, clock))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return VerifiedLogin(config, folder, clock)


def enter_by_browser(
    homeserver: str, user_id: str, tls_ca_file: str | None, clock: ChannelClock, person: PersonAtTerminal
) -> VerifiedLogin:
    """Log in with a person at a browser. Raises `ChannelError` or `ValueError`, as `enter`."""
    config = _config(homeserver, user_id, None, tls_ca_file)
    folder = Path(tempfile.mkdtemp(prefix="squidbot-init-"))

    async def log_in() -> None:
        async with _connected(config) as link:
            await log_in_by_browser(config, link, folder, clock, person)

    try:
        anyio.run(log_in)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return VerifiedLogin(config, folder, clock)


def login_ways_at(homeserver: str, tls_ca_file: str | None) -> Sequence[str]:
    """Return how one can log in, see `login_ways`; a server that does not say it takes passwords."""

    async def ask_ways() -> Sequence[str]:
        async with _connected(_config(homeserver, _NOBODY, "-", tls_ca_file)) as link:
            return await login_ways(link)

    try:
        return anyio.run(ask_ways) or ["password"]
    except ChannelError:
        return ["password"]


def has_login(state: Path) -> bool:
    """Return True if the daemon has a login of its own."""
    return any((state / name).exists() for name in _LOGINS)


def is_login_valid(config: MatrixConfig, state: Path, clock: ChannelClock) -> bool:
    """Return True if the daemon's login is valid; False if it has none."""
    if config.access_token is None and not has_login(state):
        return False
    return anyio.run(partial(_still_in, config, state, clock))


def resolve(text: str, tls_ca_file: str | None) -> str:
    """
    The address of the client API: ``text`` is that, or the name of a server, whose ``.well-known`` says it
    (Matrix client-server API, "Server discovery").

    Raises:
        ChannelError, ValueError: There is none; why, in plain words.
    """
    given = text.strip()
    base = (given if "://" in given else f"https://{given}").rstrip("/")
    # What the settings do not take is told before anything is asked.
    _config(base, _NOBODY, "-", tls_ca_file)
    return anyio.run(partial(_resolve, base, tls_ca_file, named="://" not in given))


def is_unknown_user(homeserver: str, person: str, tls_ca_file: str | None) -> bool:
    """Return True if the homeserver says that there is no such account; an error gives False."""
    try:
        return anyio.run(partial(_rejects_unknown_user, homeserver, person, tls_ca_file))
    except (ChannelError, ValueError):
        return False


async def _rejects_unknown_user(homeserver: str, person: str, tls_ca_file: str | None) -> bool:
    async with _connected(_config(homeserver, _NOBODY, "-", tls_ca_file)) as link:
        answer = await _asked(link, f"{CLIENT}/profile/{quote_path(person)}")
    # The second is what older versions of Synapse say.
    return answer.status == 404 and answer.errcode in ("M_NOT_FOUND", "M_UNKNOWN")


def is_in_clear(address: str) -> bool:
    """Return True if the password would go over a network unencrypted."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    try:
        is_here = ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    return parts.scheme == "http" and not is_here


def _config(homeserver: str, user_id: str, password: str | None, tls_ca_file: str | None) -> MatrixConfig:
    """The settings of an account; without a password its login is a person's."""
    given = {"homeserver": homeserver, "user_id": user_id, "password": password, "tls_ca_file": tls_ca_file}
    given["login"] = "browser" if password is None else "password"
    try:
        return MatrixConfig.model_validate(given)
    except ValidationError as error:
        raise ValueError(complaint(error)) from None


async def _enter(config: MatrixConfig, folder: Path, clock: ChannelClock) -> None:
    for pauses_left in reversed(range(_PAUSES + 1)):
        try:
            with _in_time(config, _LOGIN_LIMIT_S):
                async with _connected(config) as homeserver:
                    await MatrixLogin(config, homeserver, folder, clock).enter()
            break
        except ChannelUnavailable as error:
            # Homeservers slow logins down; a person who has tried twice is soon there.
            pause_s = error.retry_after_s
            if pause_s is None or pause_s > _MAX_PAUSE_S or not pauses_left:
                raise
            await anyio.sleep(pause_s)
    if not (folder / _LOGINS[0]).exists():
        raise ChannelUnavailable(f"the login cannot be kept in {folder}: is that disk full?")


async def _still_in(config: MatrixConfig, state: Path, clock: ChannelClock) -> bool:
    with _in_time(config, _LOGIN_LIMIT_S):
        async with _connected(config) as homeserver:
            await MatrixLogin(config, homeserver, state, clock).enter()
            answer = await _asked(homeserver, f"{CLIENT}/account/whoami", anonymous=False)
    if answer.is_success:
        return answer.body.get("user_id") == config.user_id
    if answer.is_token_refused:
        return False
    raise channel_error(answer)


async def _resolve(base: str, tls_ca_file: str | None, *, named: bool) -> str:
    """Look a name up first; of an address see first if it is one already."""
    if not named and await _speaks_matrix(base, tls_ca_file):
        return base
    try:
        told = await _well_known(base, tls_ca_file)
    except ChannelError:
        if named and await _reaches(base, tls_ca_file):
            return base
        raise
    if told is None:
        if named and await _speaks_matrix(base, tls_ca_file):
            return base
        raise ChannelMisconfigured(
            f"there is no Matrix homeserver at {base}: neither the client API nor a .well-known/matrix/client"
            " that says where it is"
        )
    if not await _speaks_matrix(told, tls_ca_file):
        raise ChannelMisconfigured(
            f"the .well-known of {base} names {told} as its homeserver, but no Matrix server answers there"
        )
    return told


async def _reaches(base: str, tls_ca_file: str | None) -> bool:
    with suppress(ChannelError):
        return await _speaks_matrix(base, tls_ca_file)
    return False


async def _speaks_matrix(address: str, tls_ca_file: str | None) -> bool:
    async with _connected(_config(address, _NOBODY, "-", tls_ca_file)) as homeserver:
        answer = await _asked(homeserver, "/_matrix/client/versions")
    return answer.is_success and isinstance(answer.body.get("versions"), list)


async def _well_known(base: str, tls_ca_file: str | None) -> str | None:
    """Return the homeserver's URL by .well-known, None without one. Raises ChannelMisconfigured."""
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(base))
    async with _connected(_config(origin, _NOBODY, "-", tls_ca_file)) as homeserver:
        answer = await _asked(homeserver, "/.well-known/matrix/client")
    if not answer.is_success or not answer.body:
        return None
    told = answer.body.get("m.homeserver")
    address = told.get("base_url") if isinstance(told, dict) else None
    if not isinstance(address, str):
        raise ChannelMisconfigured(f"the .well-known of {origin} does not say where the homeserver is")
    try:
        address = _config(address, _NOBODY, "-", tls_ca_file).homeserver
    except ValueError as error:
        raise ChannelMisconfigured(f"the .well-known of {origin} is wrong: {error}") from None
    if is_in_clear(address):
        raise ChannelMisconfigured(
            f"the .well-known of {origin} names {address}, which would get the password unencrypted"
        )
    return address


async def _asked(homeserver: Homeserver, path: str, *, anonymous: bool = True) -> HttpAnswer:
    try:
        return await homeserver.request("GET", path, timeout_s=_LIMIT_S, anonymous=anonymous)
    except LinkBroken as error:
        raise unreachable(error) from error


@asynccontextmanager
async def _connected(config: MatrixConfig) -> AsyncIterator[Homeserver]:
    homeserver = await connect_by_nio(config)
    try:
        yield homeserver
    finally:
        with anyio.move_on_after(5, shield=True):
            await homeserver.aclose()


@contextmanager
def _in_time(config: MatrixConfig, limit_s: float) -> Iterator[None]:
    """A limit whose end is a sentence."""
    try:
        with anyio.fail_after(limit_s):
            yield
    except TimeoutError as error:
        raise ChannelUnavailable(f"{config.homeserver} did not answer within {limit_s:.0f} s") from error
