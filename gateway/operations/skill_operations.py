"""Operations on skills: list, look at, add from a folder, an archive or the address of one, remove."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_core.operation import operation
from gateway.errors import GatewayError, NotFound, StateUnusable
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import skill_text
from gateway.system.terminal_text import plain_line

if TYPE_CHECKING:
    from agent_core.skills import SkillsLoader
    from agent_core.skills.added_skills import AddedSkills
    from agent_core.skills.skill_source import FoundSkill, SkillFiles
    from agent_core.tools.web.web_client import WebClient
    from gateway.settings import Settings

_NEEDS = ("home", "settings")
_MAX_SCANNED_BYTES = 256 * 1024
"""Of a file; a pattern lets nothing else run while it reads."""
_MAX_COMPARED_LINES = 500
_PROGRAMS = (b"\x7fELF", b"MZ", b"PK\x03\x04", b"\x1f\x8b", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe")
_Result = TypeVar("_Result")


class SkillRefused(GatewayError):
    """The skill cannot be used, added or removed. Nothing was changed."""

    exit_code = 1


@operation("skills list", writes=False, needs=_NEEDS, render=skill_text.skills)
async def list_skills(context: OperationContext) -> dict[str, Any]:
    """List the skills, where each one came from, and those that are not used."""

    def read() -> dict[str, Any]:
        loader, added = _skills(context)
        pins = added.pins()
        rows = [
            {
                "name": one.name,
                "description": one.description,
                "from": _origin(added, Path(one.location).parent, pins),
                "missing": list(one.missing),
            }
            for one in loader.list_skills()
        ]
        gone = [
            f"{name}, added from {pin.source}: its SKILL.md is gone; add it again or remove it"
            for name, pin in pins.items()
            if not (added.folder / name / "SKILL.md").is_file()
        ]
        return {"skills": rows, "problems": [*loader.problems, *gone]}

    return await _in_thread(read)


@operation(
    "skills check",
    writes=False,
    needs=_NEEDS,
    render=skill_text.skill_reports,
    fails=lambda answer: bool(answer["problems"]),
)
async def check_skills(
    context: OperationContext, source: Path | None = None, *, name: str = ""
) -> dict[str, Any]:
    """
    Check all your skills, or one from elsewhere: the format, and places to read before you trust it.

    Args:
        source: A folder, an archive (zip, tar.gz) or its https address, or the name of a skill.
        name: Which one, if an archive holds several.
    """
    fetched = None if source is None else await _fetch(context, source)

    def read() -> dict[str, Any]:
        loader, added = _skills(context)
        if fetched is not None:
            return {"skills": [_seen(loader, added, fetched, name)[1]], "problems": []}
        if source is not None and not source.exists() and (added.folder / source.name).is_dir():
            return {"skills": [_checked(added.folder / source.name)], "problems": []}
        if source is not None:
            return {"skills": [_seen(loader, added, (source, b""), name)[1]], "problems": []}
        shown = [_checked(folder) for folder in loader.usable_folders()]
        return {"skills": shown, "problems": loader.problems}

    return await _in_thread(read)


def _added_text(answer: Mapping[str, Any]) -> str:
    return (
        skill_text.addition(answer)
        if answer["added"]
        else skill_text.skill_reports({"skills": [answer], "problems": []})
    )


@operation("skills add", writes=True, needs=_NEEDS, render=_added_text, again="sha256")
async def add_skill(
    context: OperationContext, source: Path, *, name: str = "", sha256: str = ""
) -> dict[str, Any]:
    """
    Show a skill from a folder, a git checkout or an archive, and add it after a yes.

    Args:
        source: The folder or the archive (zip, tar, tar.gz) on this machine, or the archive's https address.
        name: Which one, if it holds several.
        sha256: Add it without asking if its files have this hash, as shown.
    """
    whence = await _fetch(context, source) or (source, b"")

    def add() -> dict[str, Any]:
        loader, added = _skills(context)
        found, view = _seen(loader, added, whence, name)
        if sha256 and sha256 != view["sha256"]:
            raise SkillRefused(
                f"it has changed since it was shown: its files now have the hash {view['sha256']}"
            )
        if sha256:
            added.add(view["name"], found, whence[0], datetime.now(UTC).isoformat(timespec="seconds"))
        return {**view, "added": bool(sha256)}

    return await _in_thread(add)


@operation(
    "skills remove",
    writes=True,
    needs=_NEEDS,
    render=lambda answer: plain_line(f"the skill {answer['name']} is removed"),
    confirm="Remove the skill {name} and its files?",
)
async def remove_skill(context: OperationContext, name: str, *, force: bool = False) -> dict[str, Any]:
    """
    Remove a skill that was added.

    Args:
        name: The skill.
        force: Also if its files were changed since, which are lost then.
    """

    def remove() -> dict[str, Any]:
        loader, added = _skills(context)
        folder = added.folder / name
        if name in added.pins() and folder.is_dir() and folder not in loader.usable_folders() and not force:
            raise SkillRefused(f"{name} was changed since it was added; --force removes it all the same")
        added.remove(name)
        return {"name": name}

    return await _in_thread(remove)


# ── inside ──


def _skills(context: OperationContext) -> tuple[SkillsLoader, AddedSkills]:
    if context.skills is None or context.skills.added is None:
        raise NotFound("there are no skills here")
    return context.skills, context.skills.added


async def _in_thread(work: Callable[[], _Result]) -> _Result:
    import anyio.to_thread

    from agent_core.errors import SkillInvalid

    try:
        return await anyio.to_thread.run_sync(work)
    except SkillInvalid as error:
        raise SkillRefused(f"the skill cannot be used: {error}") from error
    except ValueError as error:  # a path that is none
        raise SkillRefused(str(error)) from error
    except OSError as error:
        raise StateUnusable(f"{error.filename or 'a file'}: {error.strerror or error}") from error


def _origin(added: AddedSkills, folder: Path, pins: Mapping[str, Any]) -> str:
    if folder.parent != added.folder:
        return "squidbot"
    pin = pins.get(folder.name)
    return "you" if pin is None else f"{pin.source}, {pin.added_at[:10]}"


async def _fetch(context: OperationContext, source: Path) -> tuple[str, bytes] | None:
    """
    Download an archive: its address and content; None: the source is a path. Raises SkillRefused.

    Addresses of the own network are reached as by the tools, because a person has named them.
    """
    if not str(source).startswith("https:/"):
        return None
    from agent_core.errors import ToolError
    from agent_core.skills.skill_source import MAX_BYTES

    assert context.settings is not None
    address = "https://" + str(source).removeprefix("https:/").lstrip("/")
    try:
        found = await _web_client(context.settings, MAX_BYTES).get(address, headers={"Accept": "*/*"})
    except (ToolError, ValueError) as error:
        raise SkillRefused(str(error)) from error
    if not 200 <= found.status < 300:
        raise SkillRefused(f"the server answers with status {found.status}; is {address} the archive itself?")
    if not found.address.startswith("https://"):
        raise SkillRefused(f"the server leads to {found.address}, where anybody on the way can change it")
    if found.is_cut:
        raise SkillRefused(f"the archive has more than {MAX_BYTES:,} bytes")
    return address, found.body


def _web_client(settings: Settings, max_bytes: int) -> WebClient:
    from agent_core.tools.web.plugin import reach_of
    from agent_core.tools.web.web_client import WebClient, WebLimits

    return WebClient(reach_of(settings.tools.web), WebLimits(max_bytes=max_bytes))


def _seen(
    loader: SkillsLoader, added: AddedSkills, whence: tuple[Path | str, bytes], name: str
) -> tuple[FoundSkill, dict[str, Any]]:
    """Read a skill from a path, or an address and its content, and describe it. Raises SkillInvalid."""
    from agent_core.skills.skill_source import (
        digest_of,
        read_archive,
        read_skill_folder,
        read_source,
        source_label,
    )

    source, content = whence
    found = read_source(source, name) if isinstance(source, Path) else read_archive(content, name)
    view = _view(found.files, "")
    added.refuse(view["name"], source)
    before: SkillFiles = {}
    if view["name"] in added.pins() and (target := added.folder / view["name"]).is_dir():
        before = read_skill_folder(target).files
    known = {one.name: one for one in loader.list_skills()}.get(view["name"])
    return found, {
        **view,
        "source": source_label(source),
        "sha256": digest_of(found.files),
        "left_out": list(found.left_out[:50]),
        "replaces": "" if known is None else _origin(added, Path(known.location).parent, added.pins()),
        "changes": [] if not before else _changes(before, found.files),
    }


def _changes(before: SkillFiles, after: SkillFiles) -> list[str]:
    """Compare two versions; only sizes of a file that takes long, and of all beyond what somebody reads."""
    from agent_core.tools.files.file_reading import diff_text

    lines: list[str] = []
    for name in sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        old, new = before.get(name), after.get(name)
        sizes = [len(content or b"") for content in (old, new)]
        if len(lines) >= _MAX_COMPARED_LINES or max(sizes) > _MAX_SCANNED_BYTES:
            lines.append(f"{name}: {sizes[0]:,} bytes become {sizes[1]:,}, not compared")
        else:
            lines += diff_text(old, new, name).split("\n")[:200]
    return lines


def _checked(folder: Path) -> dict[str, Any]:
    """Describe a skill of the workspace; what a source may not hold is a remark on it."""
    from agent_core.errors import SkillInvalid
    from agent_core.skills.skill_source import SKILL_FILE, read_skill_folder

    try:
        return _view(read_skill_folder(folder).files, folder.name)
    except SkillInvalid as error:
        view = _view({SKILL_FILE: (folder / SKILL_FILE).read_bytes()}, folder.name)
        return {**view, "departures": [*view["departures"], str(error)]}


def _view(files: SkillFiles, folder: str) -> dict[str, Any]:
    from agent_core.skills.skill_document import parse_skill
    from agent_core.skills.skill_source import SKILL_FILE
    from agent_core.skills.suspicious_text import find_hosts
    from agent_core.text import decode_text

    document = parse_skill(files[SKILL_FILE], folder)
    texts = {
        name: decode_text(files[name][:_MAX_SCANNED_BYTES]) for name in files if b"\0" not in files[name]
    }
    return {
        "name": document.name,
        "description": document.description,
        "license": document.license,
        "compatibility": document.compatibility,
        "allowed_tools": list(document.allowed_tools),
        "always": document.always,
        "requires": [*document.bins, *(f"${name}" for name in document.env)],
        "departures": list(document.departures),
        "files": [{"path": name, "bytes": len(files[name])} for name in sorted(files)],
        "suspicions": _suspicions(files, texts),
        "hosts": sorted({host for text in texts.values() for host in find_hosts(text)})[:50],
        "text": texts.get(SKILL_FILE, ""),
    }


def _suspicions(files: SkillFiles, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    from agent_core.skills.suspicious_text import Suspicion, find_suspicious

    found: list[tuple[str, Suspicion]] = []
    for number, name in enumerate(sorted(files)):
        scanned = number < 100 and name in texts
        found += [(name, each) for each in find_suspicious(texts[name])] if scanned else []
        if name in texts and not (scanned and len(files[name]) <= _MAX_SCANNED_BYTES):
            found.append((name, Suspicion(1, "was not looked at to its end", "")))
        if files[name].startswith(_PROGRAMS):
            found.append((name, Suspicion(1, "is a program or an archive, nobody can read it", "")))
    return [{"file": name, **each._asdict()} for name, each in found]
