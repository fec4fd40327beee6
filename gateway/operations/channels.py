"""Operations on Matrix accounts and mailboxes, in a running daemon only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from agent_core.operation import Option, operation
from gateway.errors import GatewayError, NeedsDaemon, NotFound
from gateway.operations.context import OperationContext
from gateway.system.terminal_text import plain_line

RETRY = "channel_retry"
Account = Annotated[str, Option(help="The account, if there are several: its key under channels.")]


class MatrixRefused(GatewayError):
    """The Matrix account cannot do this."""

    exit_code = 75


def _devices_text(answer: Mapping[str, Any]) -> str:
    return "\n".join(plain_line(_device_text(one)) for one in answer["found"]) or "no devices"


def _device_text(one: Mapping[str, Any]) -> str:
    marks = ["signed by its owner" if one["signed"] else "NOT signed by its owner"]
    marks += ["this one"] if one["this"] else []
    marks += ["identity verified by emoji"] if one["verified"] else []
    key = one["fingerprint"] or ""
    spaced = " ".join(key[start : start + 4] for start in range(0, len(key), 4))
    return f"{one['user']}  {one['device']}  {spaced}  ({', '.join(marks)})"


@operation("matrix devices", writes=True, render=_devices_text)
async def list_devices(context: OperationContext, *, user: str = "", channel: Account = "") -> dict[str, Any]:
    """
    Show the devices of the bot or of another user: fingerprints, and whether their owner has signed them.

    Args:
        user: The user, such as @alice:example.org (default: the bot).
    """
    return await _ask(context, channel, "devices", user)


@operation("matrix verify", writes=True)
async def begin_verification(context: OperationContext, user: str = "", channel: str = "") -> dict[str, Any]:
    """Prepare for the next verification; with a person, ask them to verify the bot."""
    return await _ask(context, channel, "verify", user)


@operation("matrix verification", writes=True)
async def show_verification(context: OperationContext, user: str = "", channel: str = "") -> dict[str, Any]:
    """The state of the verification, and its emoji."""
    return await _ask(context, channel, "verification", user)


@operation("matrix compared", writes=True)
async def confirm_emoji(
    context: OperationContext, *, user: str, same: bool, channel: str = ""
) -> dict[str, Any]:
    """Tell the verification whether the emoji are the same."""
    return await _ask(context, channel, "confirm_emoji", user, same=same)


@operation(
    "matrix reset-device",
    writes=True,
    render=lambda answer: f"the bot's device is {answer['found']} now",
    confirm="Replace the bot's device by a new one?",
)
async def reset_device(context: OperationContext, *, channel: Account = "") -> dict[str, Any]:
    """
    Replace the bot's device by a new one, signed by the same identity, if encryption is broken.

    Messages that the bot has not read yet may become unreadable. People need not verify the bot again.
    """
    return await _ask(context, channel, "reset_device")


@operation("matrix account-check", writes=True)
async def check_account(context: OperationContext, channel: str = "") -> dict[str, Any]:
    """The state of the account's encryption, as its homeserver sees it."""
    return await _ask(context, channel, "account_check")


async def _ask(
    context: OperationContext, channel: str, what: str, *arguments: Any, **named: Any
) -> dict[str, Any]:
    from channels.base import ChannelError

    name, admin = _admin(context, channel)
    try:
        return {"channel": name, "found": await getattr(admin, what)(*arguments, **named)}
    except ChannelError as error:
        raise MatrixRefused(str(error)) from error


def _admin(context: OperationContext, channel: str) -> tuple[str, Any]:
    """The admin of the account that is meant."""
    found = {
        name: getattr(one, "admin", None)
        for name, one in context.channels.items()
        if hasattr(one, "admin") and channel in ("", name)
    }
    if not found:
        what = f"no Matrix account {channel!r}" if channel else "no Matrix account"
        raise _missing(what, running=context.running)
    if len(found) > 1:
        raise NotFound(f"there are several accounts; choose one with --channel: {', '.join(sorted(found))}")
    [(name, admin)] = found.items()
    if admin is None:
        raise MatrixRefused("the account is not connected yet; `squidbot status` says why")
    return name, admin


@operation("channel retry", writes=True)
async def retry_channel(context: OperationContext, channel: str) -> dict[str, Any]:
    """Connect a channel again that waits after a failure, as when somebody has logged in."""
    if context.retry is None or channel not in context.channels:
        raise _missing(f"no channel {channel!r}", running=context.running)
    context.retry(channel)
    return {"channel": channel}


def _reset_text(answer: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{name}: the circuit breaker is reset; it was open because {'; '.join(why)}"
        if why
        else f"{name}: the circuit breaker was not open, so there is nothing to reset"
        for name, why in answer["reset"].items()
    )


@operation(
    "email reset-breaker",
    writes=True,
    render=_reset_text,
    fails=lambda answer: not any(answer["reset"].values()),
)
async def reset_breaker(
    context: OperationContext,
    *,
    channel: Annotated[str, Option("--account", "Only on this mailbox: its name under channels.email.")] = "",
) -> dict[str, Any]:
    """
    Reset the circuit breaker, which opens when two programs seem to answer each other.

    squidbot then sends waiting replies within minutes, and releases the mail that the breaker quarantined.
    """
    found = {
        name: one
        for name, one in context.channels.items()
        if hasattr(one, "reset_breaker") and channel in ("", name)
    }
    if not found:
        what = f"no mailbox {channel!r}" if channel else "no mailbox"
        raise _missing(what, running=context.running)
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
