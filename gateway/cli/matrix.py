"""The command ``squidbot matrix verify``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
import time
from typing import Annotated

from cyclopts import Parameter

from gateway.cli.command_context import HERE, Where, ask, confirm
from gateway.cli.generated_commands import make_group

matrix = make_group(__name__)
_CHECK_EVERY_S = 0.5
_Account = Annotated[str, Parameter(help="The account, if there are several: its key under channels.")]
_ENDED = {
    "done": "verified: both sides have seen the same emoji",
    "cancel": "the other side has cancelled",
    "failed": "it failed: the keys of the other side do not fit",
    "mismatched": "cancelled: the emoji differ, so somebody may be in between",
    "timed out": "nobody continued it",
}


@matrix.command(name="verify")
def matrix_verify(*, user: str = "", channel: _Account = "", wait: float = 300.0, where: Where = HERE) -> int:
    """
    Verify the bot with another user by comparing seven emoji.

    Without --user, begin in your client: click on the bot, then on "Verify". With --user, that person's
    clients are asked.

    Args:
        user: The user who verifies the bot, such as @alice:example.org.
        wait: Timeout in seconds.
    """
    from gateway.system.terminal_text import plain_line

    ask(where, "matrix_verify", user=user, channel=channel)
    print(
        f"{user} has been asked; accept it there, and choose to compare emoji."
        if user
        else 'Now begin in your client: click on the bot\'s name, then on "Verify".'
    )
    give_up_at = time.monotonic() + wait
    told = ""
    while time.monotonic() < give_up_at:
        now = ask(where, "matrix_verification", user=user, channel=channel)["found"]
        if now["stage"] in _ENDED:
            print(_ENDED[now["stage"]])
            return 0 if now["stage"] == "done" else 1
        if now["stage"] != told:
            told = now["stage"]
            if told == "begun":
                print(plain_line(f"{now['user']} is there."))
            elif told == "emoji":
                print(f"\n    {'   '.join(now['emoji'])}\n")
                same = confirm(plain_line(f"Does {now['user']} see the same?"))
                ask(where, "matrix_compared", user=now["user"], same=same, channel=channel)
        time.sleep(_CHECK_EVERY_S)
    print("squidbot: nobody continued it in time", file=sys.stderr)
    return 1
