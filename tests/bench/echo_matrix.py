"""
The floor for the Matrix benchmark: an echo bot on bare nio, written the usual way.

``sync_forever``, a callback, `room_send` in it; no inbox, no order, no care. Whatever squidbot's channel adds
to this is the price of its promises. Run it as a process of its own, beside the channel it is compared with::

    python -m tests.bench.echo_matrix --homeserver URL --user-id @bot:server --access-token TOKEN --device-id ID

It prints ``ready`` when it listens and ends with SIGTERM. ``--store DIR`` switches encryption on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence

from nio import AsyncClient, AsyncClientConfig, InviteMemberEvent, MatrixRoom, RoomMessageText


async def echo(arguments: argparse.Namespace) -> None:
    """Answer every text of somebody else with ``echo: <text>`` until cancelled."""
    client = AsyncClient(
        arguments.homeserver,
        arguments.user_id,
        device_id=arguments.device_id,
        store_path=arguments.store,
        config=AsyncClientConfig(encryption_enabled=arguments.store is not None),
    )
    client.restore_login(arguments.user_id, arguments.device_id, arguments.access_token)

    async def on_text(room: MatrixRoom, event: RoomMessageText) -> None:
        if event.sender != client.user_id:
            await client.room_send(
                room.room_id,
                "m.room.message",
                {"msgtype": "m.text", "body": f"echo: {event.body}"},
                ignore_unverified_devices=True,
            )

    async def on_invite(room: MatrixRoom, event: InviteMemberEvent) -> None:
        if event.state_key == client.user_id and event.membership == "invite":
            await client.join(room.room_id)

    # What is old is not echoed: the callbacks are set after the first sync.
    await client.sync(timeout=0, full_state=True)
    client.add_event_callback(on_text, RoomMessageText)
    client.add_event_callback(on_invite, InviteMemberEvent)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        await client.sync_forever(timeout=30_000)
    finally:
        await client.close()


async def _until_told(arguments: argparse.Namespace) -> None:
    task = asyncio.ensure_future(echo(arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(argv: Sequence[str] | None = None) -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--homeserver", required=True)
    parser.add_argument("--user-id", required=True)
    parser.add_argument("--access-token", required=True)
    parser.add_argument("--device-id", required=True)
    parser.add_argument("--store", default=None)
    asyncio.run(_until_told(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
