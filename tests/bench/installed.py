"""
A Python that has only what squidbot needs, as its users install it.

Tools of development bring libraries which others load wherever they find them: pycryptodome parses C declarations with
cffi, which takes 2.4 MB. With them the figures would be those of a daemon that nobody runs.
"""

from __future__ import annotations

import os
import shutil
import venv
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement


def installed_python(folder: Path) -> str:
    """Make an environment of what is installed here; returns the path of its Python."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    for needed in _needed("squidbot-gateway").values():
        for file in needed.files or ():
            if file.parts[0] == ".." or file.suffix == ".pth":
                continue
            source = Path(str(needed.locate_file(file)))
            _put(source, site / file)
            if file.suffix == ".py":
                compiled = Path(cache_from_source(str(source)))
                _put(compiled, (site / file).parent / "__pycache__" / compiled.name)
    return str(folder / "bin" / "python")


def _put(source: Path, there: Path) -> None:
    """By another name of the same file where that is possible: confined processes do not follow links."""
    if there.exists() or not source.exists():
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, there)
    except OSError:
        shutil.copy2(source, there)


def _needed(name: str) -> dict[str, Distribution]:
    """A distribution and all that it requires on this machine."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    open_ = [Requirement(name)]
    while open_:
        wanted = open_.pop()
        for extra in ("", *wanted.extras):
            if (wanted.name, extra) in seen:
                continue
            seen.add((wanted.name, extra))
            found[wanted.name] = distribution(wanted.name)
            required = map(Requirement, found[wanted.name].requires or ())
            open_ += [one for one in required if not one.marker or one.marker.evaluate({"extra": extra})]
    return found
