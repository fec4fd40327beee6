"""Requests of the operator to a Matrix account: devices, verification, and the state of its encryption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

from agent_core.operation import Option, operation
from agent_core.text import one_line
from channels.plugin import RunningAccounts

if TYPE_CHECKING:
    from channels.matrix.channel import MatrixChannel

Account = Annotated[str, Option(help="The account, if there are several: its key under channels.")]
_NO_DEVICES = "No device that can encrypt is known. Is the address right, such as @alice:example.org?"


def _devices_text(answer: Mapping[str, Any]) -> str:
    return "\n".join(one_line(_device_text(one), 500) for one in answer["found"]) or _NO_DEVICES


def _device_text(one: Mapping[str, Any]) -> str:
    marks = ["signed by its owner" if one["signed"] else "NOT signed by its owner"]
    marks += ["this one"] if one["this"] else []
    marks += ["identity verified by emoji"] if one["verified"] else []
    key = one["fingerprint"] or ""
    spaced = " ".join(key[start : start + 4] for start in range(0, len(key), 4))
    return f"{one['user']}  {one['device']}  {spaced}  ({', '.join(marks)})"


@operation("matrix devices", writes=True, render=_devices_text)
async def list_devices(context: RunningAccounts, *, user: str = "", channel: Account = "") -> dict[str, Any]:
    """
    Show the devices of the bot or of another user: fingerprints, and whether their owner has signed them.

    Args:
        user: The user, such as @alice:example.org (default: the bot).
    """
    return await _ask(context, channel, "devices", user)


@operation("matrix verify", writes=True)
async def begin_verification(
    context: RunningAccounts, *, user: str = "", channel: str = ""
) -> dict[str, Any]:
    """Prepare for the next verification; with a person, ask them to verify the bot."""
    return await _ask(context, channel, "verify", user)


@operation("matrix verification", writes=True)
async def show_verification(context: RunningAccounts, *, user: str = "", channel: str = "") -> dict[str, Any]:
    """The state of the verification, and its emoji."""
    return await _ask(context, channel, "verification", user)


@operation("matrix compared", writes=True)
async def confirm_emoji(
    context: RunningAccounts, *, user: str, same: bool, channel: str = ""
) -> dict[str, Any]:
    """Tell the verification whether the emoji are the same."""
    return await _ask(context, channel, "confirm_emoji", user, same=same)


@operation(
    "matrix reset-device",
    writes=True,
    render=lambda answer: f"the bot's device is {answer['found']} now",
    confirm="Replace the bot's device by a new one?",
)
async def reset_device(context: RunningAccounts, *, channel: Account = "") -> dict[str, Any]:
    """
    Replace the bot's device by a new one, signed by the same identity, if encryption is broken.

    Messages that the bot has not read yet may become unreadable. People need not verify the bot again.
    """
    return await _ask(context, channel, "reset_device")


@operation("matrix account-check", writes=True)
async def check_account(context: RunningAccounts, *, channel: str = "") -> dict[str, Any]:
    """The state of the account's encryption, as its homeserver sees it."""
    from channels.matrix.crypto.account_check import encryption_findings  # noqa: PLC0415 - as above

    answer = await _ask(context, channel, "account_check")
    findings = encryption_findings(answer["found"], running=True)
    return {**answer, "findings": [asdict(each) for each in findings]}


async def _ask(
    context: RunningAccounts, channel: str, what: str, *arguments: Any, **named: Any
) -> dict[str, Any]:
    from channels.base import ChannelError, ChannelUnavailable  # noqa: PLC0415 - not for the command line

    found = context.channels_of("matrix", channel)
    if len(found) > 1:
        raise ChannelError(
            f"there are several accounts; choose one with --channel: {', '.join(sorted(found))}"
        )
    [(name, account)] = found.items()
    admin = cast("MatrixChannel", account).admin
    if admin is None:
        raise ChannelUnavailable("the account is not connected yet; `squidbot status` says why")
    return {"channel": name, "found": await getattr(admin, what)(*arguments, **named)}
