"""
The bot's own device: opened, compared with the server's record, announced, signed, and replaced if necessary.
Keys missing on the server are uploaded. Ours lost, different or older than the committed generation cannot be
repaired, because peers' sessions rely on them: the bot logs in as a new device, signs it, deletes the old one
and takes over its readable room keys. The new login is stored first, so that each failed step is found by the
next try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import structlog

from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import Homeserver, MatrixCredentials
from channels.matrix.client.json_access import object_of, text_of
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.crypto.cross_signing import CrossSigning
from channels.matrix.crypto.devices import KeyRequests, StoreIsOld
from channels.matrix.crypto.key_types import StoreBroken

if TYPE_CHECKING:
    from channels.matrix.crypto.olm_machine import OlmMachine

_OLD = "the crypto store is an older copy"
_log = structlog.get_logger(__name__)


class OwnDevice:
    """The device of the current login; ``fetch`` makes its file from a shared database."""

    def __init__(
        self,
        homeserver: Homeserver,
        login: MatrixLogin,
        requests: KeyRequests,
        signing: CrossSigning,
        open_machine: Callable[[str], OlmMachine],
        *,
        fetch: Callable[[str], None] | None = None,
    ) -> None:
        self._homeserver = homeserver
        self._login = login
        self._requests = requests
        self._signing = signing
        self._open = open_machine
        self._fetch = fetch
        self._before: OlmMachine | None = None
        self.signed = False
        self.replaced = ""
        """Why the device was replaced in this process; empty if it was not."""

    def retire(self, machine: OlmMachine) -> None:
        """Note that the login has another device now, which takes over the room keys of the old one."""
        if self._before is not None:
            self._before.close()
        self._before = machine

    async def announce(self, committed: str) -> OlmMachine:
        """Return the device's announced, signed machine. Raises ChannelError, LinkBroken or OSError."""
        for _ in range(4):
            credentials = self._homeserver.credentials
            if credentials is None:
                raise ChannelUnavailable("not logged in")
            machine = None
            try:
                if self._fetch is not None:
                    await anyio.to_thread.run_sync(self._fetch, credentials.device_id)
                machine = self._open(credentials.device_id)
                trouble = await self._trouble(machine, committed)
                if not trouble:
                    await self._announce(machine)
                    self._inherit(machine)
                    return machine
            except StoreBroken as error:
                trouble = f"the crypto store cannot be read ({error})"
            except StoreIsOld:
                trouble = _OLD
            except BaseException:
                if machine is not None:
                    machine.close()
                raise
            await self._replace(credentials, machine, trouble)
        raise ChannelUnavailable("the homeserver does not accept the keys of a new device")

    async def replace(self, machine: OlmMachine, why: str) -> None:
        """
        Log in as another device, which the next `announce` opens; raises as that does.

        On failure the machine is closed, and the same device is opened by the next `announce`.
        """
        credentials = self._homeserver.credentials
        if credentials is None or credentials.device_id != machine.device_id:
            machine.close()
            return
        await self._replace(credentials, machine, why)

    async def _trouble(self, machine: OlmMachine, committed: str) -> str:
        """Return why the machine cannot be used, or ""."""
        generation, _, device_id = committed.partition(" ")
        if device_id == machine.device_id and machine.generation < int(generation) and machine.shared:
            return _OLD
        published = await self._own_keys()
        device = object_of(object_of(object_of(published, "device_keys"), machine.user_id), machine.device_id)
        theirs = text_of(object_of(device, "keys"), f"ed25519:{machine.device_id}")
        if theirs and theirs != machine.ed25519:
            why = "does not match the one that the server has" if machine.shared else "is lost"
            return f"the crypto store {why}"
        if not theirs and machine.shared:
            machine.shared = False
        return ""

    async def _announce(self, machine: OlmMachine) -> None:
        await self._requests.upload(machine, None)
        self.signed = await self._signing.ensure(machine, await self._own_keys())

    async def _replace(
        self, credentials: MatrixCredentials, machine: OlmMachine | None, trouble: str
    ) -> None:
        _log.error("matrix.device_abandoned", device=credentials.device_id, reason=trouble)
        try:
            await self._login.replace_device(credentials, trouble)
        except BaseException:
            if machine is not None:
                machine.close()
            raise
        self.replaced = trouble
        if machine is None:
            return
        if machine.shared:
            self.retire(machine)
        else:
            machine.discard()

    def _inherit(self, machine: OlmMachine) -> None:
        before, self._before = self._before, None
        if before is not None and before.device_id != machine.device_id:
            machine.adopt(before)
            before.discard()
        elif before is not None:
            before.close()
        _log.info("matrix.encryption_ready", device=machine.device_id, fingerprint=machine.ed25519)

    async def _own_keys(self) -> Mapping[str, Any]:
        return await self._requests.query([self._login.user_id])
