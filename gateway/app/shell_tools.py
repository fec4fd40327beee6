"""Composition root: the shell of the settings, its sandbox, whether that was proved, and who may use it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agent_core.models import Session
from agent_core.ports import Clock
from agent_core.tools.policy import is_available
from gateway.operations.home_files import LazyHomeFiles, open_skills
from gateway.settings import Settings
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.children.command_sandbox import CommandSandbox
    from agent_core.tools.files.command_origins import CommandFiles
    from agent_core.tools.shell.proxy import CommandProxy
    from agent_core.tools.shell.shell_tool import ShellTool

_AGAIN_AFTER_S = (20.0, 120.0, 600.0, 1800.0)
"""The last one for all later ones."""
_HANDED_OVER = ("/run/credentials", "/run/secrets")


def command_sandbox(settings: Settings, home: Home) -> CommandSandbox | None:
    """The sandbox of these settings, not proved yet; None if there is no shell. Nothing is touched."""
    wanted = settings.tools.shell
    if wanted.allow == "none":
        return None
    from agent_core.children.command_sandbox import (  # noqa: PLC0415 - rarely wanted
        CommandSandbox,
        SandboxFolders,
    )
    from agent_core.children.rights import Ceilings  # noqa: PLC0415

    handed = [os.environ.get("CREDENTIALS_DIRECTORY", ""), *_HANDED_OVER]
    config = [settings.path, settings.path.parent / "secrets"] if settings.path else []
    return CommandSandbox(
        SandboxFolders(
            workspace=home.path(settings.agents.workspace),
            home=home.root,
            private_in=home.run / "commands",
            secret=[*config, *(Path(each) for each in handed if each)],
            readable=[Path(each) for each in wanted.read_only],
            readable_now=open_skills(settings, home).usable_folders,
        ),
        backend=wanted.backend,
        unit=home.run / "shell.sock",
        connects=bool(wanted.network),
        environment={name: value.get_secret_value() for name, value in wanted.env.items()},
        limits=Ceilings(
            seconds=wanted.seconds,
            memory_bytes=int(wanted.memory_mb * 1_000_000),
            processes=wanted.processes,
            disk_bytes=int(wanted.disk_mb * 1_000_000),
        ),
    )


class Shell:
    """The family ``shell`` of a running gateway. Until its sandbox is proved there is no tool."""

    def __init__(self, settings: Settings, home: Home, clock: Clock, files: LazyHomeFiles) -> None:
        self._sandbox = command_sandbox(settings, home)
        self._settings = settings.tools.shell
        self._web = settings.tools.web
        self._clock = clock
        self._files = files
        self._readable: CommandFiles | None = None
        self._tried = anyio.Event()

    async def prove(self) -> None:
        """Test the sandbox at the start, and again until there is a verdict. Raises nothing."""
        if self._sandbox is None:
            return
        for pause_s in chain(_AGAIN_AFTER_S, repeat(_AGAIN_AFTER_S[-1])):
            proof = await self._sandbox.prove()
            self._tried.set()
            if not proof.temporary:
                return
            await anyio.sleep(pause_s)

    async def wait_for_test(self, session: Session) -> None:
        """
        Return when the sandbox was tested once, if this session may have a shell; after a while in any case.

        A turn that is taken up again right after the start, such as one whose command was approved meanwhile,
        would be told otherwise that there is no shell.
        """
        if self.will_be_available(session):
            with anyio.move_on_after(30.0):
                await self._tried.wait()

    def tools(self, session: Session) -> list[ShellTool]:
        """Return the tool for the owner, where nobody else reads along."""
        tool = self.tool(session, seconds=self._settings.seconds)
        return [] if tool is None else [tool]

    def tool(self, session: Session, *, seconds: float) -> ShellTool | None:
        """The tool, for commands that may take so long; None where there is none now."""
        if (
            self._sandbox is None
            or not self._sandbox.proof.held
            or not is_available(self._settings.allow, session)
        ):
            return None
        from agent_core.tools.shell.shell_tool import ShellTool  # noqa: PLC0415 - rarely wanted

        return ShellTool(
            self._sandbox,
            self._command_files,
            seconds=seconds,
            clock=self._clock,
            hosts=self._settings.network if self._sandbox.connects else (),
            proxy=self._proxy,
        )

    def _proxy(self, opened: Callable[[str], Awaitable[None]]) -> CommandProxy:
        from agent_core.tools.shell.proxy import CommandProxy  # noqa: PLC0415 - not before it is used
        from agent_core.tools.web.plugin import reach_of  # noqa: PLC0415
        from agent_core.tools.web.web_client import SystemResolver  # noqa: PLC0415

        return CommandProxy(self._settings.network, reach_of(self._web), SystemResolver(), opened)

    def will_be_available(self, session: Session) -> bool:
        """Return True if this session gets a tool as soon as the sandbox is proved."""
        return self._sandbox is not None and is_available(self._settings.allow, session)

    def _command_files(self) -> CommandFiles:
        from agent_core.tools.files.command_origins import CommandFiles  # noqa: PLC0415 - not before it is used

        if self._readable is None:
            files = self._files()
            self._readable = CommandFiles(
                files.roots.workspace.path,
                files.journal,
                outside=self._settings.read_only,
                now=self._clock.now,
            )
        return self._readable

    def state(self) -> Mapping[str, Any]:
        """Return the sandbox's part of the status; nothing without a shell."""
        if self._sandbox is None:
            return {}
        proof = self._sandbox.proof
        return {"shell": {"ready": None if proof.temporary else proof.held, "told": str(proof)}}
