"""The request of the operator to a mailbox: to reset its circuit breaker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from agent_core.operation import Option, operation
from channels.plugin import RunningAccounts

if TYPE_CHECKING:
    from channels.email.channel import EmailChannel


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
    context: RunningAccounts,
    *,
    channel: Annotated[str, Option("--account", "Only on this mailbox: its name under channels.email.")] = "",
) -> dict[str, Any]:
    """
    Reset the circuit breaker, which opens when two programs seem to answer each other.

    squidbot then sends waiting replies within minutes.
    """
    found = context.channels_of("email", channel)
    return {"reset": {name: await cast("EmailChannel", one).reset_breaker() for name, one in found.items()}}
