"""
Finds the folder for a purpose: the one that the server marks, or the one with the right name in the mailbox's
namespace. Pure. Names from the settings are as people write them, with ``/`` between levels; servers have
delimiters of their own (``.`` is common), and some keep everything below ``INBOX.``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from channels.email.imap.imap_syntax import Folder, folder_wire


@dataclass(frozen=True, slots=True)
class WantedFolder:
    """A folder to find, by its ``mark`` (RFC 6154), else one of ``names``, the preferred first."""

    names: tuple[str, ...]
    mark: str = ""

    def find_or_none(self, folders: Sequence[Folder]) -> str | None:
        """The folder's name as the server writes it."""
        for folder in folders:
            if self.mark and self.mark in folder.attributes:
                return folder.wire
        prefix, delimiter = _namespace(folders)
        for name in self.names:
            local = name.replace("/", delimiter) if delimiter else name
            for candidate in (local, prefix + local):
                for folder in folders:
                    if folder.name.lower() == candidate.lower():
                        return folder.wire
        return None

    def new_name(self, folders: Sequence[Folder]) -> str:
        """The name to create, as the server writes it."""
        prefix, delimiter = _namespace(folders)
        local = self.names[0].replace("/", delimiter) if delimiter else self.names[0]
        return folder_wire(local if local.startswith(prefix) else prefix + local)


SENT = WantedFolder(("Sent", "Sent Items", "Sent Messages"), mark="\\sent")


def _namespace(folders: Sequence[Folder]) -> tuple[str, str]:
    """Return prefix and delimiter: INBOX's if all folders lie below it (Courier, Cyrus), else none."""
    delimiter = next((folder.delimiter for folder in folders if folder.delimiter), "")
    others = [folder.name for folder in folders if folder.name.upper() != "INBOX"]
    below = f"INBOX{delimiter}"
    if delimiter and others and all(name.upper().startswith(below) for name in others):
        return others[0][: len(below)], delimiter
    return "", delimiter
