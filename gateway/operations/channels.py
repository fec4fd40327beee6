"""Operations on Matrix accounts and mailboxes, in a running daemon only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.base import Channel, ChannelError
from gateway.errors import GatewayError, NeedsDaemon, NotFound

MATRIX_OPERATIONS = frozenset(
    {
        "matrix_devices",
        "matrix_verify",
        "matrix_verification",
        "matrix_compared",
        "matrix_reset_device",
        "matrix_account_check",
    }
)
MAIL_OPERATIONS = frozenset({"email_reset_breaker"})
RETRY = "channel_retry"


class MatrixRefused(GatewayError):
    """The Matrix account cannot do this."""

    exit_code = 75


class MatrixOperations:
    """Operations on the accounts of ``self._channels``."""

    _channels: Mapping[str, Channel]
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None

    async def matrix_devices(self, user: str = "", channel: str = "") -> dict[str, Any]:
        """The devices of the bot or of another user, and whether their owner has signed them."""
        return await self._ask(channel, "devices", user)

    async def matrix_verify(self, user: str = "", channel: str = "") -> dict[str, Any]:
        """Prepare for the next verification; with a person, ask them to verify the bot."""
        return await self._ask(channel, "verify", user)

    async def matrix_verification(self, user: str = "", channel: str = "") -> dict[str, Any]:
        """The state of the verification, and its emoji."""
        return await self._ask(channel, "verification", user)

    async def matrix_compared(self, user: str, same: bool, channel: str = "") -> dict[str, Any]:  # noqa: FBT001 - called by name
        """Tell the verification whether the emoji are the same."""
        return await self._ask(channel, "confirm_emoji", user, same=same)

    async def matrix_reset_device(self, channel: str = "") -> dict[str, Any]:
        """Replace the bot's device by a new one."""
        return await self._ask(channel, "reset_device")

    async def matrix_account_check(self, channel: str = "") -> dict[str, Any]:
        """The state of the account's encryption, as its homeserver sees it."""
        return await self._ask(channel, "account_check")

    async def _ask(self, channel: str, what: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        name, admin = self._admin(channel)
        try:
            return {"channel": name, "found": await getattr(admin, what)(*arguments, **named)}
        except ChannelError as error:
            raise MatrixRefused(str(error)) from error

    def _admin(self, channel: str) -> tuple[str, Any]:
        """The admin of the account that is meant."""
        found = {
            name: getattr(one, "admin", None)
            for name, one in self._channels.items()
            if hasattr(one, "admin") and channel in ("", name)
        }
        if not found:
            what = f"no Matrix account {channel!r}" if channel else "no Matrix account"
            raise _missing(what, running=self._report is not None)
        if len(found) > 1:
            raise NotFound(
                f"there are several accounts; choose one with --channel: {', '.join(sorted(found))}"
            )
        [(name, admin)] = found.items()
        if admin is None:
            raise MatrixRefused("the account is not connected yet; `squidbot status` says why")
        return name, admin


class MailOperations:
    """Operations on the mailboxes among ``self._channels``, and on channels of any kind."""

    _channels: Mapping[str, Channel]
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None
    _retry: Callable[[str], None] | None

    async def channel_retry(self, channel: str) -> dict[str, Any]:
        """Connect a channel again that waits after a failure, as when somebody has logged in."""
        if self._retry is None or channel not in self._channels:
            raise _missing(f"no channel {channel!r}", running=self._report is not None)
        self._retry(channel)
        return {"channel": channel}

    async def email_reset_breaker(self, channel: str = "") -> dict[str, Any]:
        """Reset the circuit breaker of a mailbox; without a name, of all."""
        found = {
            name: one
            for name, one in self._channels.items()
            if hasattr(one, "reset_breaker") and channel in ("", name)
        }
        if not found:
            what = f"no mailbox {channel!r}" if channel else "no mailbox"
            raise _missing(what, running=self._report is not None)
        reset: dict[str, list[str]] = {}
        for name, one in found.items():
            reset_breaker: Any = getattr(one, "reset_breaker")  # noqa: B009 - no other channel has it
            reset[name] = await reset_breaker()
        return {"reset": reset}


def _missing(what: str, *, running: bool) -> GatewayError:
    """Build the error for an unknown account: the daemon has none, or no daemon runs."""
    if running:
        return NotFound(f"the daemon has {what}; `squidbot status` shows its channels")
    return NeedsDaemon()
