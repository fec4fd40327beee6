"""Calendars, tasks and contacts of the owner's CalDAV and CardDAV server; off until ``tools.dav`` is set."""
