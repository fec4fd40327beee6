"""
The state that the tools of one run share. A `FileRun` knows what the model has read: a file that was changed
since is not overwritten. It knows as well which files it has made. Both are recorded with each step of the
turn (`read_file` carries them), so a turn that is taken up again decides the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_core.errors import ToolError
from agent_core.models import Purpose, Session, ToolResult
from agent_core.provenance import Origins
from agent_core.tools.effects import Effect, approved_state

if TYPE_CHECKING:
    from agent_core.tools.files.change_journal import FileChange
    from agent_core.tools.files.journaled_files import ChangeAuthor, JournaledFiles
    from agent_core.tools.files.roots import RootedPath


class FileRun:
    """The state that the file tools of one run share."""

    def __init__(
        self,
        files: Callable[[], JournaledFiles],
        session: Session,
        *,
        own: bool,
        known: dict[str, str],
        origins: Callable[[], Origins],
    ) -> None:
        self._files = files
        self._session = session
        self._known = known
        self._seen: dict[str, str] = {}
        self._made: set[str] = set()
        self._calls = 0
        self.own = own
        self.origins = origins

    @property
    def files(self) -> JournaledFiles:
        """The files."""
        return self._files()

    @property
    def has_person(self) -> bool:
        """Return True if a person can be asked; heartbeat runs and scheduled jobs have nobody."""
        return self._session.purpose in (Purpose.CHAT, Purpose.BACKGROUND)

    def place(self, path: str, *, write: bool = False) -> RootedPath:
        """The place of a path for this run."""
        return self.files.roots.place(path, own=self.own, write=write)

    def is_prompt(self, path: str) -> bool:
        """Return True if prompts are built from the file at this path."""
        try:
            return self.place(path).prompt
        except ToolError:
            return False

    def state(self) -> dict[str, Any]:
        """The number of changes, the files that were read, and those that were made."""
        return {"calls": self._calls, "seen": self._seen, "made": sorted(self._made)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from such a state."""
        self._calls, self._seen = state["calls"], dict(state["seen"])
        self._made = set(state.get("made", ()))

    def saw(self, place: RootedPath, digest: str | None) -> None:
        """Remember a file's content as the model last saw it."""
        for kept in (self._seen, self._known):
            kept.pop(place.label, None)
            if digest:
                kept[place.label] = digest
                while len(kept) > 200:
                    del kept[next(iter(kept))]

    def note_change(self, place: RootedPath, change: FileChange) -> None:
        """Remember a change of ours: what the file holds now, and whether it was not there before."""
        self.saw(place, change.after)
        if change.kind == "write" and change.before is None:
            self._made.add(place.label)

    def knows(self, place: RootedPath) -> str | None:
        """The content of a file as the model knows it; None: it does not."""
        return self._seen.get(place.label) or self._known.get(place.label)

    def makes_new(self, path: object) -> bool:
        """Return True if a change of this file affects nothing that existed before this run."""
        try:
            place = self.place(str(path), write=True)
            return place.label in self._made or not self.files.roots.is_there(place)
        except (ToolError, OSError):
            return False

    def by(self, name: str, arguments: Mapping[str, Any]) -> ChangeAuthor:
        """The author of the next change. Repeated, the same call of the same turn has the same key."""
        from agent_core.tools.files.journaled_files import ChangeAuthor  # noqa: PLC0415 - not before it is used

        told = json.dumps([name, arguments], sort_keys=True)
        digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        key = f"{self._session.turn}.{self._calls}.{digest}" if self._session.turn else ""
        self._calls += 1
        return ChangeAuthor(self._session.turn, self._session.id, key, self.origins(), approved_state())

    def effect(self, *paths: object) -> Effect:
        """The effect of changing these files. If it cannot be determined, the call is asked about."""
        try:
            places = [self.place(str(path)) for path in paths]
        except ToolError:
            return Effect.WRITE_WORKSPACE  # it is refused when it runs
        return Effect.PERSIST if any(place.prompt for place in places) else Effect.WRITE_WORKSPACE


class FileTool:
    """The base of the file tools."""

    name: str
    repeatable = True

    def __init__(self, run: FileRun) -> None:
        self._run = run

    def _done(self, change: FileChange | None, place: RootedPath, said: str) -> ToolResult:
        if change is None:
            return ToolResult(content=f"{place.label!r} is already like that; nothing was changed.")
        self._run.note_change(place, change)
        return ToolResult(content=f"Done: {said}.", undo=f"squidbot files undo {change.id}")
