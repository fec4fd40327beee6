"""
An operator's requests about a Matrix account's encryption: list devices, verify somebody, replace the own
device.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from channels.base import ChannelError, ChannelUnavailable
from channels.matrix.client.homeserver import Homeserver, LinkBroken
from channels.matrix.crypto.account_check import check_account
from channels.matrix.crypto.devices import KeyTokenRefused
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.verification import Verifications

_Found = TypeVar("_Found")


class MatrixAdmin:
    """Administration of one account; methods raise `ChannelError`. ``allows``: may verify the bot."""

    def __init__(
        self,
        user_id: str,
        crypto: EncryptionEngine,
        verifications: Verifications,
        allows: Callable[[str], bool],
        homeserver: Homeserver,
    ) -> None:
        self._homeserver = homeserver
        self.user_id = user_id
        self._crypto = crypto
        self._verifications = verifications
        self._allows = allows

    async def devices(self, user_id: str = "") -> list[dict[str, Any]]:
        """The devices of the bot, or of somebody: names, fingerprints, whether they are signed."""
        return await _asked(self._devices(user_id or self.user_id))

    async def _devices(self, user_id: str) -> list[dict[str, Any]]:
        machine = await self._crypto.ready()
        self._crypto.mark_outdated(user_id)
        await self._crypto.learn_devices([user_id])
        found: list[dict[str, Any]] = [
            {
                "device": device.device_id,
                "fingerprint": machine.fingerprint(user_id, device.device_id),
                "signed": self._crypto.identities.is_signed(user_id, device.device_id),
                "this": False,
            }
            for device in sorted(machine.devices_of([user_id]))
        ]
        if user_id == self.user_id:
            signed = self._crypto.identities.is_signed(user_id, machine.device_id)
            mine = {"device": machine.device_id, "fingerprint": machine.ed25519, "signed": signed}
            found.insert(0, {**mine, "this": True})
        verified = self._crypto.identities.is_verified(user_id)
        return [{"user": user_id, "verified": verified, **one} for one in found]

    async def account_check(self) -> dict[str, Any]:
        """Return the state of the account's encryption as its homeserver reports it."""
        return (await check_account(self._homeserver)).as_dict()

    async def verify(self, user_id: str = "") -> dict[str, Any]:
        """Take part in verifications from now on; with a user id, ask that person to verify the bot."""
        self._verifications.forget_outcomes()
        self._verifications.attend()
        if not user_id:
            return {"asked": 0}
        if not self._allows(user_id):
            raise ChannelError(
                f"{user_id} may not talk to the bot (allow_from), so there is nothing to verify"
            )
        asked = await _asked(self._verifications.begin(user_id))
        if not asked:
            raise ChannelError(f"{user_id} has no device that can encrypt, or does not exist")
        return {"asked": asked}

    async def verification(self, user_id: str = "") -> dict[str, Any]:
        """The state of the verification; the operator's terminal polls it."""
        self._verifications.attend()
        return self._verifications.state(user_id)

    async def confirm_emoji(self, user_id: str, *, same: bool) -> bool:
        """The operator's answer about the emoji."""
        return await _asked(self._verifications.answer(user_id, same=same))

    async def reset_device(self) -> str:
        """Replace the device by a new one that the same identity signs; returns its name."""
        return await _asked(self._crypto.reset_device("the operator asked for a new one"))


async def _asked(work: Awaitable[_Found]) -> _Found:
    try:
        return await work
    except LinkBroken as error:
        raise ChannelUnavailable(f"the homeserver cannot be reached: {error}") from error
    except KeyTokenRefused as refused:
        raise ChannelUnavailable("the login was refused; it is being renewed, try again") from refused
    except OSError as error:
        raise ChannelUnavailable(f"it cannot be written: {error}") from error
