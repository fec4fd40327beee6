"""
The operation ``squidbot import``: persona, memory, skills, schedules and histories of another assistant. What
becomes an instruction here (all but the histories) is shown word for word first, under a code, and comes only
with the yes to exactly this: the code. So it counts as the owner's. A history may repeat anybody's words, and
counts as such. Each piece has a name made of what it says, so an import that was cut off goes on when it is
repeated, and nothing comes twice; nothing that is here is overwritten.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agent_core.operation import Option, operation
from gateway.errors import AlreadyRunning, NotFound
from gateway.operations.job_operations import owner_place
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.system.terminal_text import plain_line, quote

if TYPE_CHECKING:
    from agent_core.models import Message
    from agent_core.tools.files.journaled_files import JournaledFiles
    from gateway.operations.migration.import_sources import ForeignJob, Found

Kind = Literal["openclaw", "hermes", "nanobot"]
_PAGE = 200
_SHOWN = 40
_NOT_YET = (
    "Nothing was changed. Read what would come: from then on it counts as your own words, except for the"
    " histories, which may repeat anybody's. *** stands for what looks like a secret. To do it:"
)
_COMES, _IS_HERE, _STAYS = "comes", "is here already", "stays there"


def _row(what: str, state: str, why: str = "", text: str = "") -> dict[str, str]:
    return {"what": what, "state": state, "why": why, "text": text}


def _answer_text(answer: Mapping[str, Any]) -> str:
    rows, done = answer["rows"], answer["done"]
    lines = [f"{answer['from']}, {plain_line(answer['folder'])}"]
    for state in (_COMES, _IS_HERE, _STAYS):
        some = [row for row in rows if row["state"] == state]
        title = state if state != _COMES else "came" if done else "would come"
        lines += [f"\n{title}:"] if some else []
        for row in some if state == _COMES else some[:_SHOWN]:
            lines.append(f"  {plain_line(row['what'])}{': ' if row['why'] else ''}{plain_line(row['why'])}")
            if row["text"] and state == _COMES and not done:
                lines += [f"    {line}" for line in quote(row["text"]).splitlines()]
        if state != _COMES and len(some) > _SHOWN:
            lines.append(f"  and {len(some) - _SHOWN} more (--json lists them)")
    if done:
        return "\n".join([*lines, "\nStart squidbot: it makes the histories searchable."])
    how = f"squidbot import {answer['kind']} {shlex.quote(answer['folder'])} --now {answer['code']}"
    return "\n".join([*lines, f"\n{_NOT_YET}", f"  {plain_line(how)}"])


@operation(
    "import",
    writes=True,
    needs=("home", "settings"),
    render=_answer_text,
)
async def import_assistant(
    context: OperationContext,
    kind: Kind,
    folder: Path,
    *,
    now: Annotated[str, Option(help="Do it: the code under which everything was shown.")] = "",
) -> dict[str, Any]:
    """
    Bring persona, memory, skills, schedules and histories from another assistant; no daemon may run.

    Without --now it changes nothing, and shows what would come, what would not, and why. Schedules come
    paused. Keys and tokens are named and never copied. To continue or repeat an import is harmless.

    Args:
        kind: Which assistant: openclaw, hermes or nanobot.
        folder: Its folder, such as ~/.openclaw, or its workspace.
    """
    import anyio.to_thread

    from gateway.operations.migration.foreign_folder import ForeignFolder
    from gateway.operations.migration.import_sources import ASSISTANTS, ForeignHome

    if context.running:
        raise AlreadyRunning("squidbot is running: stop it, import, and start it again")
    if context.planned is None or context.files is None:
        raise NotFound("this home has no schedule or no files")
    root = folder.expanduser()
    if not await anyio.to_thread.run_sync(root.is_dir):
        raise NotFound(f"there is no folder {root}")
    home = ForeignHome(kind, ForeignFolder(root), context.planned.zone)
    found = await anyio.to_thread.run_sync(home.read)
    if now and now != found.code:
        raise RequestInvalid(
            f"nothing was changed: under {now} something else was shown. Look again, without --now"
        )
    step = _Step(context, context.files(), kind, ASSISTANTS[kind].title, writes=bool(now))
    rows = await anyio.to_thread.run_sync(step.bring_files, found)
    rows += await step.bring_memory(found.memory)
    rows += [await step.bring_job(job) for job in found.jobs]
    rows.append(await step.bring_histories(home.messages()))
    rows += [_row(path, _STAYS, f"it belongs to {step.title} itself") for path in found.own]
    rows += [_row(place, _STAYS, "keys and tokens; enter your own here") for place in found.secrets]
    rows += [_row(note.partition(": ")[0], _STAYS, note.partition(": ")[2]) for note in home.folder.notes]
    return {
        "from": step.title,
        "kind": kind,
        "folder": str(root),
        "code": found.code,
        "done": bool(now),
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class _Step:
    """The parts of one import; without ``writes`` only what would be is returned."""

    context: OperationContext
    files: JournaledFiles
    kind: Kind
    title: str
    writes: bool

    def bring_files(self, found: Found) -> list[dict[str, str]]:
        """Bring persona, checklist and skills. Blocks."""
        from agent_core.persona import FILE_NAME, MAX_CHARS, Persona

        rows = []
        if found.persona:
            is_free = not Persona(self.files.roots.workspace.path).text()
            fits = len(found.persona) <= MAX_CHARS
            why = "" if fits else f"PERSONA.md takes {MAX_CHARS} characters; shorten it and copy it there"
            own = _key_for(FILE_NAME, f"{found.persona}\n".encode())
            name = FILE_NAME if fits and (is_free or self._is_made(own)) else f"PERSONA.{self.kind}.md"
            if fits and name != FILE_NAME:
                why = "you have a PERSONA.md, which stays; copy there what you want"
            rows.append(self._put_row("persona", name, found.persona, why))
        if _has_items(found.checklist):
            why = "copy what you want into HEARTBEAT.md, as `- [ ]` items"
            rows.append(self._put_row("check-ins", f"HEARTBEAT.{self.kind}.md", found.checklist, why))
        return rows + [self._bring_skill(name, files) for name, files in sorted(found.skills.items())]

    def _put_row(self, what: str, name: str, text: str, why: str) -> dict[str, str]:
        state, refusal = self._put(name, f"{text}\n".encode())
        return _row(what, state, refusal or f"to {name}{f': {why}' if why else ''}", text)

    def _is_made(self, key: str) -> bool:
        done = self.files.journal.find_by_call(key)
        return done is not None and self.files.finish_change(done).made

    def _put(self, name: str, content: bytes) -> tuple[str, str]:
        """Write a file that is not there or has only what `init` wrote; return the state, and why not."""
        from agent_core.errors import ToolError
        from agent_core.persona import STARTER
        from agent_core.tools.files.journaled_files import ChangeAuthor

        key = _key_for(name, content)
        try:
            place = self.files.roots.place(name, write=True)
            there = self.files.read_state(place)
            if self._is_made(key) or (there is not None and there.content == content):
                return _IS_HERE, ""
            if there is not None and there.content.strip() not in (b"", STARTER.strip().encode()):
                return _STAYS, f"there is another {name}"
            if self.writes:
                by = ChangeAuthor(session="squidbot import", key=key)
                expected = None if there is None else there.digest
                self.files.replace(place, lambda _: content, kind="write", by=by, expected=expected)
        except ToolError as error:
            return _STAYS, str(error)
        return _COMES, ""

    def _bring_skill(self, name: str, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write the files of a skill, SKILL.md last: without it the others are no skill."""
        from agent_core.skills import BUNDLED_SKILLS, SkillsLoader

        what, folder = f"skill {name}", self.files.roots.workspace.path / "skills"
        known = {each.name: each.location for each in SkillsLoader(BUNDLED_SKILLS, folder).list_skills()}
        target = folder / name / "SKILL.md"
        if known.get(name, str(target)) != str(target):
            return _row(what, _STAYS, "there is another skill of that name")
        state = _IS_HERE
        for path in sorted(files, key=lambda each: (each == "SKILL.md", each)):
            one, refusal = self._put(f"skills/{name}/{path}", files[path])
            if refusal:
                return _row(what, _STAYS, refusal)
            state = _COMES if one == _COMES else state
        size = sum(map(len, files.values()))
        told = f"{len(files)} files, {size} bytes, to skills/{name}/; read them first"
        return _row(what, state, told, "\n".join(islice(_suspicions(files), _SHOWN)))

    async def bring_memory(self, texts: Mapping[str, str]) -> list[dict[str, str]]:
        """Append those lines of documents to the owner's memory that it has not and never had from there."""
        from agent_core.memory.scopes import OWNER
        from agent_core.tools.memory_write import MAX_CHARS

        memory, turn, rows = self.context.memory, f"import.{self.kind}", []
        document = await memory.load_global_memory(OWNER)
        versions = await memory.memory_versions(OWNER)
        known = {line.strip() for each, _, _, by in versions if by == turn for line in each.text.splitlines()}
        for path, text in texts.items():
            known.update(map(str.strip, document.text.splitlines()))
            new = [line for line in text.splitlines() if line.strip() not in known or not line.strip()]
            body = "\n".join(new).strip()
            if not body:
                rows.append(_row(path, _IS_HERE))
                continue
            joined = f"{document.text.rstrip()}\n\n{body}\n".lstrip()
            if len(joined) > MAX_CHARS:
                name = f"{Path(path).stem}.{self.kind}.md"
                why = f"the memory takes {MAX_CHARS} characters; shorten it and copy it there"
                rows.append(self._put_row(path, name, text, why))
                continue
            rows.append(_row(path, _COMES, "to the end of your memory", body))
            if self.writes:
                document = await memory.save_global_memory(
                    OWNER, joined, base_version=document.version, turn=turn, origins=document.origins
                )
            else:
                document = replace(document, text=joined)
        return rows

    async def bring_job(self, job: ForeignJob) -> dict[str, str]:
        """Add a job, paused: the other assistant may still do it."""
        from gateway.proactive.jobs.job_service import id_for
        from gateway.proactive.jobs.triggers import TriggerInvalid
        from gateway.store.model import JobKind
        from gateway.store.store_errors import TooManyJobs

        planned, what = self.context.planned, f"schedule {job.place}"
        if planned is None or job.request is None:
            return _row(what, _STAYS, job.why, job.text)
        key = f"import.{self.kind}.{job.id}"
        kept = await planned.plans.job(id_for(key))
        if kept is not None and kept.text == job.text:
            return _row(what, _IS_HERE, f"as {kept.id}")
        try:
            timing = planned.service.parse(job.request)
            place = await owner_place(self.context)
            kind, told = JobKind.ASK if job.ask else JobKind.REMIND, f"paused, {timing}"
            if self.writes:
                made = await planned.service.add(
                    place, job.request, text=job.text, kind=kind, key=key, paused=True
                )
                told = f"paused; squidbot cron resume {made.id} starts it"
        except (TriggerInvalid, RequestInvalid, TooManyJobs) as error:
            return _row(what, _STAYS, str(error), job.text)
        return _row(what, _COMES, told, job.text)

    async def bring_histories(self, messages: Iterator[Message]) -> dict[str, str]:
        """Append the messages that are not in the conversation of the import yet."""
        import anyio.to_thread

        from agent_core.messages import SessionKey

        session, memory = str(SessionKey("import", self.kind)), self.context.memory
        known, position, count, days = set[str](), 0, 0, set[str]()
        while (page := await memory.load_segment(session, start=position, max_messages=1000)).messages:
            known.update(each.id for each in page.messages if each.id)
            position = page.positions[-1] + 1
        kept = len(known)
        while batch := await anyio.to_thread.run_sync(lambda: list(islice(messages, _PAGE))):
            new = {each.id: each for each in batch if each.id and each.id not in known}
            known.update(each for each in new if each)
            count += len(new)
            days.update(f"{each.timestamp:%Y-%m-%d}" for each in new.values() if each.timestamp)
            if self.writes and new:
                await memory.append_message(session, *new.values())
        if self.writes and count:
            await memory.sync_history(session)
        state = _COMES if count else _IS_HERE if kept else _STAYS
        span = f" of {min(days)} to {max(days)}" if days else ""
        told = f"{count} messages{span}, to the conversation {session}" + (
            f"; {kept} are here" if kept else ""
        )
        return _row("histories", state, told if count or kept else "there are none that can be read")


def _key_for(name: str, content: bytes) -> str:
    return f"import.{hashlib.sha256(name.encode() + b'/' + content).hexdigest()}"


def _suspicions(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the places in a skill's files that somebody should read before it is used."""
    from agent_core.skills.suspicious_text import find_suspicious
    from agent_core.text import decode_text

    for path in sorted(files):
        for each in find_suspicious(decode_text(files[path])):
            yield f"{path}, line {each.line}, {each.why}: {each.words}"


def _has_items(text: str) -> bool:
    """Return True if a checklist has more than headings and comments."""
    from agent_core.persona import without_comments

    return any(line.strip() and not line.startswith("#") for line in without_comments(text).splitlines())
