"""``tools.dav``: the owner's calendar server. No library is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from agent_core.settings_section import SettingsSection
from agent_core.tools.policy import Availability
from agent_core.tools.web.urls import normalise_url


class DavSettings(SettingsSection):
    """
    Your calendars, tasks and contacts (CalDAV and CardDAV). Without this section there are no such tools.

    Needs the extra ``dav``. Whoever may use the tools sees and changes what this account may.
    """

    allow: Availability = "owner"
    """
    ``owner``: you, in conversations that nobody else can read. ``people``: everybody who may talk to the bot,
    in private conversations. ``none``: nobody.
    """
    url: Annotated[str, AfterValidator(normalise_url)]
    """Address of the server, such as ``https://cloud.example.org/remote.php/dav/`` (docs/calendar.md)."""
    username: str = Field(min_length=1)
    """The name of the account there."""
    password: SecretStr
    """An app password where the server has such, for example ``${secret:calendar}``."""
    tls_ca_file: Path | None = None
    """Certificates of your own CA, trusted in addition to the system's."""
    calendar: str = ""
    """Name of the calendar for new appointments and tasks. Empty: the first that takes them."""
    ask: bool = True
    """Whether each change needs your approval. If not, only what tools.policy says is asked about."""
    remind: bool = True
    """
    Whether check-ins tell you of an appointment that begins before the next one, or whose alarm goes off
    until then. That costs no model call.
    """
