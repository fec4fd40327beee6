"""
Determines whose words the output of a command can contain: those in the files that it could read. The
workspace is scanned before and after: what is new or different is the command's, made of all that it could
read. Commands that run at the same time have read each other, so they are one group, with one label that
grows until the last of them has ended. A foreign program writing meanwhile cannot be told apart. Blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path

import structlog

from agent_core.provenance import Origins, join_origins, untrusted_origin
from agent_core.tools.files.change_journal import ChangeJournal
from agent_core.tools.files.workspace_contents import ScannedFile, TooMuchError, WorkspaceContents

_MAX_NAMED = 20
_TOO_MUCH = "more than can be looked at"
_log = structlog.get_logger(__name__)


class CommandFiles:
    """
    The workspace as commands can read it, for all conversations.

    ``journal`` knows earlier writers; the origins of files in ``outside`` are unknown.
    """

    def __init__(
        self,
        workspace: Path,
        journal: ChangeJournal,
        *,
        outside: Sequence[str] = (),
        now: Callable[[], datetime],
    ) -> None:
        self.workspace = str(workspace)
        self.outside = outside
        self._journal = journal
        self._now = now
        self._lock = threading.Lock()
        self._contents = WorkspaceContents(self.workspace)
        self._running = 0
        self._label: list[Origins] = []
        """What commands of this group can have read; the journal adds what file tools write meanwhile."""
        self._strange: set[tuple[str, str]] | None = None
        """What nobody knew when the group began; None: that could not be found out."""

    def begin(self, words: Origins) -> None:
        """Before a command, whose text is made of these words. `end` must follow, unless this raises."""
        with self._lock:
            if not self._running:
                self._label = []
                self._journal.watch(self._label)
                try:
                    self._label.append(self._label_of_all())
                except BaseException:
                    self._journal.unwatch(self._label)
                    raise
            self._add(words)
            self._running += 1

    def note_other_writer(self, words: Origins) -> None:
        """While a command runs: whose words it is about to get from elsewhere, before it can write them."""
        with self._lock:
            self._add(words)

    def end(self) -> Origins:
        """After it, when nothing of it runs any more: whose words are in its output and its files."""
        with self._lock:
            self._running -= 1
            found = None
            try:
                found = self._scan()
                if found is not None and self._strange is not None:
                    self._note(found, self._strange)
            finally:
                if found is None:
                    self._add(_unknown(_TOO_MUCH, self._now()))
                if not self._running:
                    self._journal.unwatch(self._label)
            return join_origins(*self._label)

    def contents(self) -> dict[str, ScannedFile] | None:
        """Everything that a command can read now, scripts of skills included; None if it is too much."""
        with self._lock:
            return self._scan(with_skills=True)

    def _add(self, words: Origins) -> None:
        if words not in self._label:
            self._label.append(words)

    def _label_of_all(self) -> Origins:
        self._strange = None
        at = self._now()
        outside = join_origins(*(_unknown(folder, at) for folder in self.outside))
        found = self._scan()
        if found is None:
            return join_origins(outside, _unknown(_TOO_MUCH, at))
        label, strange = self._label_of(found)
        self._strange = {(path, found[path].identity) for path in strange}
        return join_origins(label, outside, self._label_of_unknown(strange))

    def _note(self, found: dict[str, ScannedFile], strange: set[tuple[str, str]]) -> None:
        """Add what has come meanwhile from others, and note what commands have made."""
        label, unknown = self._label_of(found)
        new = [path for path in unknown if (path, found[path].identity) not in strange]
        self._add(label)
        self._add(self._label_of_unknown(path for path in new if not found[path].is_ours))
        made = {path: found[path].identity for path in new if found[path].is_ours and found[path].identity}
        try:
            self._journal.labels.keep_only(found)
            self._journal.labels.note(made, join_origins(*self._label))
        except OSError as error:
            _log.warning("files.labels_not_kept", reason=error.strerror or str(error))

    def _label_of(self, found: dict[str, ScannedFile]) -> tuple[Origins, list[str]]:
        """Return the origins of all files that somebody here has written, and the paths of the others."""
        known = {path: self._journal.label_of(path, content.identity) for path, content in found.items()}
        labels = {label for label in known.values() if label is not None}
        return join_origins(*labels), [path for path, label in known.items() if label is None]

    def _label_of_unknown(self, paths: Iterable[str]) -> Origins:
        at = self._now()
        return join_origins(*(_unknown(path, at) for path in islice(paths, _MAX_NAMED)))

    def _scan(self, *, with_skills: bool = False) -> dict[str, ScannedFile] | None:
        try:
            return self._contents.scan(remember=not self._running, with_skills=with_skills)
        except (TooMuchError, OSError) as error:
            _log.info("files.not_looked_at", reason=str(error))
            return None


def _unknown(path: str, at: datetime) -> Origins:
    """Return the origin of text from an unknown author."""
    return (untrusted_origin("file", path if path.isprintable() else ascii(path), at),)
