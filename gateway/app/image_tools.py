"""
Composition root: the tool with which the owner has pictures made. `gateway.app.agent` calls it. No client is
imported before the first picture is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_core.errors import BudgetSpent, ToolFailed
from agent_core.llm.litellm.litellm_client import LiteLLMProcess
from agent_core.messages import Attachment
from agent_core.models import Purpose, ScopeKind, Session, Usage
from agent_core.ports import ToolPort
from channels.attachments import AttachmentRefused, AttachmentStore, AttachmentsUnavailable
from gateway.app.environment import Environment
from gateway.budget.metering import Metering, UsageMeter
from gateway.store.stores import StoreUnavailable

if TYPE_CHECKING:
    from agent_core.media.media_client import ProviderPictures


class Pictures:
    """The tool ``image`` for each run that may have it. One instance serves all sessions."""

    def __init__(
        self, env: Environment, metering: Metering, attachments: AttachmentStore, litellm: LiteLLMProcess
    ) -> None:
        self._settings = env.settings.tools.image
        self._providers = env.settings.llm.providers
        self._clock = env.clock
        self._metering = metering
        self._attachments = attachments
        self._litellm = litellm
        self._maker: ProviderPictures | None = None

    def tools_for(self, session: Session) -> list[ToolPort]:
        """The tool, if it is configured, where the owner alone speaks and reads along; not in check-ins."""
        settings = self._settings
        owners = session.scope.kind is ScopeKind.OWNER and session.purpose is not Purpose.HEARTBEAT
        if settings is None or settings.allow == "none" or not owners:
            return []
        from agent_core.media.image_tool import ImageTool  # noqa: PLC0415 - only where it is configured

        return [
            ImageTool(
                settings,
                self._made,
                self._keep,
                lambda: _Payment(self._metering.meter(session.key, Purpose.IMAGE, owner=True)),
            )
        ]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._maker is not None:
            await self._maker.aclose()

    def _made(self) -> ProviderPictures:
        if self._maker is None:
            from agent_core.media.media_client import build_picture_maker  # noqa: PLC0415 - not before it is used

            assert self._settings is not None
            self._maker = build_picture_maker(
                self._settings, self._providers, self._clock, litellm=self._litellm
            )
        return self._maker

    async def _keep(self, name: str, media_type: str, content: bytes) -> Attachment:
        try:
            return await self._attachments.save(name, media_type, content)
        except (AttachmentRefused, AttachmentsUnavailable) as error:
            raise ToolFailed(f"The picture was made, but cannot be stored: {error.public}") from error


class _Payment:
    """Implements `agent_core.media.image_tool.Payment` with a meter of its own."""

    def __init__(self, meter: UsageMeter) -> None:
        self._meter = meter

    async def begin(self, tokens: int, usd: float | None) -> str:
        try:
            await self._meter.enter(tokens, usd)
        except BudgetSpent as error:
            return str(error)
        except StoreUnavailable as error:
            raise ToolFailed("Nothing was made: today's spending cannot be looked up now.") from error
        return ""

    async def end(self, usage: Usage | None) -> None:
        self._meter.settle(usage)
        await self._meter.end()
