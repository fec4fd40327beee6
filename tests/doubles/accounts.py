"""Channels of one account as the gateway builds them, with the services that a test names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent_core.state_folder import StateFolder, state_in
from channels.attachments import AttachmentStore
from channels.base import ChannelClock
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.matrix.channel import MatrixChannel
from channels.matrix.config import MatrixConfig
from channels.plugin import ChannelServices
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver


def services(
    name: str,
    *,
    state_dir: Path | StateFolder,
    clock: ChannelClock,
    may_talk: Callable[[str], bool] = lambda _: True,
    is_owner: Callable[[str], bool] = lambda _: False,
    owners: Sequence[str] = (),
    alert: Any = lambda _about, _text, once="": None,
    attachments: AttachmentStore | None = None,
) -> ChannelServices:
    """The gateway's side of an account; without a store of files only their names are known."""
    return ChannelServices(
        name=name,
        clock=clock,
        state=state_in(state_dir),
        attachments=attachments,  # type: ignore[arg-type]
        may_talk=may_talk,
        is_owner=is_owner,
        owner_addresses=owners,
        alert=alert,
    )


def email_channel(
    name: str,
    config: EmailConfig,
    *,
    timing: Any = None,
    submit_timing: Any = None,
    lookup: Any = None,
    knows: Callable[[str], bool] = lambda _: True,
    **more: Any,
) -> EmailChannel:
    """A mailbox."""
    about = services(name, may_talk=knows, **more)
    channel = EmailChannel(config, about)
    channel._connections.timing = timing or channel._connections.timing
    channel._submitter.timing = submit_timing or channel._submitter.timing
    channel._records.lookup = lookup or channel._records.lookup
    return channel


def matrix_channel(
    name: str,
    config: MatrixConfig,
    *,
    connect: Any = None,
    machines: Any = None,
    **more: Any,
) -> MatrixChannel:
    """An account on Matrix; who is in ``allow_from`` may talk."""
    about = services(name, may_talk=config.allows, **more)
    channel = MatrixChannel(config, about)
    if connect is not None:
        channel.connect, channel.machines = connect, machines
    channel.machines = machines or channel.machines
    return channel


def scripted_channel(
    server: ScriptedHomeserver, folder: Path, *, settings: dict[str, Any], **more: Any
) -> MatrixChannel:
    """An account that is logged in already, on a scripted homeserver, in the time of the loop."""
    config = MatrixConfig(homeserver="http://hs", user_id="@bot:hs.test", password="pw", **settings)
    login = {
        "homeserver": "http://hs",
        "user_id": config.user_id,
        "device_id": "DEV",
        "access_token": "token-1",
    }
    (folder / "session.json").write_text(json.dumps(login))

    async def connect(_: object) -> ScriptedHomeserver:
        server.credentials = None
        return server

    return matrix_channel("matrix", config, state_dir=folder, clock=LoopClock(), connect=connect, **more)
