"""The files of a home that the assistant has changed, opened when they are first needed, and never before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.settings import Settings
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.ports import Clock
    from agent_core.skills import SkillsLoader
    from agent_core.tools.files.journaled_files import JournaledFiles


def open_skills(settings: Settings, home: Home) -> SkillsLoader:
    """The skills of a home: those that come with squidbot, and those of its workspace, which win."""
    from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
    from agent_core.skills.added_skills import AddedSkills

    added = AddedSkills(home.path(settings.agents.workspace) / "skills", home.state("skills.json"))
    return SkillsLoader(BUNDLED_SKILLS, added.folder, added=added)


class LazyHomeFiles:
    """The files of one home, opened when they are first needed."""

    def __init__(self, settings: Settings, home: Home, clock: Clock) -> None:
        self._settings = settings
        self._home = home
        self._clock = clock
        self._made_files: JournaledFiles | None = None

    def __call__(self) -> JournaledFiles:
        """Return the files, opened at the first use."""
        if self._made_files is None:
            self._made_files = self._made()
        return self._made_files

    @property
    def further_roots(self) -> dict[Path, bool]:
        """The further folders, and whether they may be changed."""
        roots = self._settings.tools.files.roots
        return {self._home.path(path): mode == "rw" for path, mode in roots.items()}

    def _made(self) -> JournaledFiles:
        from agent_core.tools.files.change_journal import ChangeJournal
        from agent_core.tools.files.journaled_files import JournaledFiles
        from agent_core.tools.files.roots import Roots

        settings, home = self._settings, self._home
        source = settings.source
        private = [home.config_file, *(source.files if source else ())]
        private += [path for path in (settings.path, os.environ.get("CREDENTIALS_DIRECTORY")) if path]
        roots = Roots(
            home.path(settings.agents.workspace),
            self.further_roots,
            home=home.root,
            private=[Path(path) for path in private],
        )
        journal = ChangeJournal(
            home.state("files"),
            now=self._clock.now,
            keep_days=settings.tools.files.keep_days,
            durable=settings.gateway.durability == "full",
        )
        return JournaledFiles(roots, journal, check_skill=open_skills(settings, home).check_change)
