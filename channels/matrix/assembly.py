"""The start of a Matrix channel's run: the connection, the keys, and the account's own id."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import structlog

from agent_core.state_folder import RowStore, StateFolder
from channels.base import ChannelClock, ChannelMisconfigured, ChannelUnavailable
from channels.matrix.admin import MatrixAdmin
from channels.matrix.client.homeserver import CLIENT, Homeserver, LinkBroken, quote_path
from channels.matrix.client.json_access import text_of
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.crypto.encryption_engine import EncryptionEngine, pickle_key
from channels.matrix.crypto.verification import SendInRoom, Verifications
from channels.matrix.events.inbound_events import BotIdentity
from channels.matrix.events.room_policy import RoomRules
from channels.matrix.receive.decryption import Decryption

if TYPE_CHECKING:
    from channels.matrix.crypto.olm_machine import OlmMachine

Connect = Callable[[MatrixConfig], Awaitable[Homeserver]]
Machines = Callable[[StateFolder, str, str], Callable[[str], "OlmMachine"]]

_log = structlog.get_logger(__name__)


def open_crypto(
    config: MatrixConfig,
    homeserver: Homeserver,
    login: MatrixLogin,
    *,
    state: StateFolder,
    machines: Machines,
    clock: ChannelClock,
) -> EncryptionEngine:
    """Encryption for an account, with its state. Raises `ChannelUnavailable`: the state cannot be used."""
    try:
        key = pickle_key(state)
        opened, fetch = machines(state, config.user_id, key), None
        if state.row_store is not None:
            fetch = nio_fetcher(state.local, state.row_store)
        return EncryptionEngine(
            homeserver, login, state, opened, clock, signed_only=config.trust_devices == "signed", fetch=fetch
        )
    except OSError as error:
        raise ChannelUnavailable(f"the keys of the account cannot be read or created: {error}") from error


def open_decryption(
    config: MatrixConfig,
    homeserver: Homeserver,
    login: MatrixLogin,
    crypto: EncryptionEngine | None,
    *,
    clock: ChannelClock,
    rules: RoomRules,
    is_owner: Callable[[str], bool],
    send_in_room: SendInRoom,
) -> tuple[Decryption, MatrixAdmin] | tuple[None, None]:
    """Build the decryption of one run and the operator's view of it; None without encryption."""
    if crypto is None:
        return None, None
    verifications = Verifications(
        crypto, clock, user_id=config.user_id, allows=rules.admits, send_in_room=send_in_room
    )
    care = MatrixAdmin(config.user_id, crypto, verifications, rules.admits, homeserver)
    decryption = Decryption(
        homeserver,
        login,
        crypto,
        verifications,
        clock,
        user_id=config.user_id,
        rules=rules,
        is_owner=is_owner,
    )
    return decryption, care


async def introduce(config: MatrixConfig, channel: str, homeserver: Homeserver) -> BotIdentity:
    """Learn the name that people may call us by; without it their mentions still count."""
    name = ""
    path = f"{CLIENT}/profile/{quote_path(config.user_id)}/displayname"
    try:
        answer = await homeserver.request("GET", path, timeout_s=5.0)
        name = text_of(answer.body, "displayname") if answer.is_success else ""
    except LinkBroken as error:
        _log.info("matrix.name_unknown", error=str(error))
    return BotIdentity(
        channel=channel,
        user_id=config.user_id,
        display_name=name,
        group_policy=config.group_policy,
        group_allow_from=config.group_allow_from,
        mention_by_name=config.mention_by_name,
        threads=config.threads,
    )


def nio_machines(state: StateFolder, user_id: str, key: str) -> Callable[[str], OlmMachine]:
    """Open what holds the keys, by nio."""
    from channels.matrix.crypto.olm_machine import opener  # noqa: PLC0415 - nio takes half a second to import

    return opener(state.local, user_id, key, state.row_store)


def nio_fetcher(folder: Path, rows: RowStore) -> Callable[[str], None]:
    """Make the file of a device from a database, by nio."""
    from channels.matrix.crypto.olm_machine import fetcher  # noqa: PLC0415 - as above

    return fetcher(folder, rows)


async def connect_by_nio(config: MatrixConfig) -> Homeserver:
    """Connect through nio, loaded here. Raises ChannelMisconfigured for bad certificates."""

    def connect() -> Homeserver:
        # nio takes half a second to import, which must not stop everything else.
        with _without_psycopg():
            from channels.matrix.client.nio_homeserver import NioHomeserver  # noqa: PLC0415 - in this thread

        return NioHomeserver(config.homeserver, config.user_id, tls_ca_file=config.tls_ca_file)

    try:
        return await anyio.to_thread.run_sync(connect)
    except (OSError, ssl.SSLError) as error:
        raise ChannelMisconfigured(f"tls_ca_file {config.tls_ca_file} cannot be used: {error}") from error


@contextmanager
def _without_psycopg() -> Iterator[None]:
    """Keep 10 MB out of the daemon: peewee, below nio, imports PostgreSQL's driver if that is installed."""
    if "psycopg" in sys.modules:
        yield
        return
    sys.modules["psycopg"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["psycopg"]
