"""The calendar tools that a conversation has. What connects or parses is loaded on first use."""

from __future__ import annotations

import importlib.util
import ssl
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from agent_core.children.service import ChildProcess
from agent_core.errors import ToolFailed
from agent_core.models import Session
from agent_core.ports import Clock, ToolPort
from agent_core.tools.policy import is_available

if TYPE_CHECKING:
    from agent_core.tools.dav.config import DavSettings
    from agent_core.tools.dav.dav_client import DavClient  # loads aiohttp
    from agent_core.tools.dav.invitation_tool import InvitationMailPort
    from agent_core.tools.files.change_tools import Received

NO_LIBRARY = "squidbot is installed without its extra 'dav', which reads calendars"
_IDLE_S = 120.0
_MAX_BYTES = 5_000_000
_ALARM_AHEAD = timedelta(days=7)
"""Alarms go off so long before their appointments at most."""
_WAIT_S = 25.0
"""A server looks through all objects before it begins to answer."""


class DavTools:
    """The tools of one account; all conversations share its client and the process that reads."""

    def __init__(self, settings: DavSettings | None, clock: Clock, zone: str) -> None:
        self._settings = settings
        self._clock = clock
        self._zone = zone
        self._made: DavClient | None = None
        child = (sys.executable, "-m", "agent_core.tools.dav.dav_child")
        self.process = ChildProcess("calendar", child, idle_s=_IDLE_S)

    def tools_for(self, session: Session) -> list[ToolPort]:
        """The tools of one run; none where they are not set up or not allowed."""
        settings = self._settings
        if settings is None or not is_available(settings.allow, session, in_rooms=False):
            return []
        from agent_core.tools.dav.dav_tools import CalendarTool, ContactsTool, TasksTool  # noqa: PLC0415 - if wanted

        return [
            kind(self.client, settings, session, clock=self._clock, zone=self._zone)
            for kind in (CalendarTool, TasksTool, ContactsTool)
        ]

    def invitation_tools(
        self, session: Session, received: Received, mail: InvitationMailPort
    ) -> list[ToolPort]:
        """The tool of the owner's runs that answers invitations; none where there is no calendar."""
        settings = self._settings
        if settings is None or not is_available(settings.allow, session, in_rooms=False):
            return []
        from agent_core.tools.dav.invitation_tool import InvitationTool  # noqa: PLC0415 - if wanted

        return [InvitationTool(self.client, received, mail)]

    @property
    def has_reminders(self) -> bool:
        """Return True if check-ins tell of appointments."""
        return self._settings is not None and self._settings.remind and self._settings.allow != "none"

    async def list_reminders(self, first: datetime, until: datetime) -> list[dict[str, str]]:
        """
        Return what to tell of from ``first`` on until ``until``; see `agent_core.tools.dav.events`.

        Raises:
            ToolError: The calendars cannot be asked now.
        """
        last, client = until + _ALARM_AHEAD, self.client()
        answers = await client.query("VEVENT", first=first, last=last)
        times = {"first": first, "last": last, "until": until}
        asked = {name: each.isoformat() for name, each in times.items()}
        return list(await client.read("reminders", answers=answers, **asked))

    async def find_contacts(self, wanted: str) -> dict[str, str]:
        """
        The names of the contacts found by name or address, by address of mail; none without an account.

        Raises:
            ToolError: The address book cannot be asked now.
        """
        if self._settings is None or self._settings.allow == "none":
            return {}
        client = self.client()
        found = await client.read("contacts", answers=await client.query_cards(wanted), words=wanted)
        return {address: str(card["name"]) for card in found["contacts"] for address in card["mail"]}

    def client(self) -> DavClient:
        """The client of the account, which exists once. Raises ToolFailed: its library or CA is missing."""
        if self._made is None:
            from agent_core.tools.dav.dav_client import DavClient  # noqa: PLC0415 - not before it is used
            from agent_core.tools.web.ip_rules import AddressReach  # noqa: PLC0415 - not before it is used
            from agent_core.tools.web.web_client import WebClient, WebLimits  # noqa: PLC0415

            if importlib.util.find_spec("recurring_ical_events") is None:
                raise ToolFailed(NO_LIBRARY)
            assert self._settings is not None
            limits = WebLimits(silence_s=_WAIT_S, max_bytes=_MAX_BYTES, apart_s=0.0)
            web = WebClient(AddressReach(), limits)
            if self._settings.tls_ca_file is not None:
                web.tls = ssl.create_default_context()
                try:
                    web.tls.load_verify_locations(self._settings.tls_ca_file)
                except OSError as error:
                    raise ToolFailed(f"tools.dav.tls_ca_file cannot be used: {error}") from error
            self._made = DavClient(self._settings, web, self.process, self._clock, self._zone)
        return self._made
