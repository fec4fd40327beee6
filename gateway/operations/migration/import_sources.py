"""
Where other assistants keep what can move in: OpenClaw (``~/.openclaw``), Hermes Agent (``~/.hermes``) and
nanobot (``~/.nanobot``), as their documentation describes it. A home is read here, and nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from agent_core.errors import SkillInvalid
from agent_core.memory.scopes import OWNER
from agent_core.models import Message
from agent_core.provenance import untrusted_origin
from agent_core.skills.skill_document import parse_skill
from gateway.observability.redaction import Redactor, names_a_secret
from gateway.operations.migration.foreign_folder import ForeignFolder
from gateway.proactive.jobs.trigger_parsing import TriggerRequest

MAX_JOB_CHARS = 20_000
_MAX_MESSAGE_CHARS = 100_000
_MAX_SKILL_FILES, _MAX_SKILL_BYTES = 100, 1024 * 1024
_MAX_JOBS, _MAX_SKILLS = 1000, 200
_SILENT = frozenset({"HEARTBEAT_OK", "NO_REPLY"})
"""What an assistant answers to its own program if it has nothing to say."""
_DAY = re.compile(r"(\d{4}-\d\d-\d\d)\b[^/]{0,100}\.md", re.ASCII)
_REDACTOR = Redactor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assistant:
    """
    A kind of home. Paths in ``{w}`` are in its workspace, the others in the home itself.

    Args:
        persona, memory: Documents, in the order in which they are taken over.
        checklist: The list of its check-ins.
        days: Notes of a day each, ``YYYY-MM-DD.md``.
        sessions: Folders of histories, whose subfolders count too.
        archives: Folders of older histories.
        databases: SQLite files, each with the table and the columns of messages: role, content, time, or one
            column with a line of a history.
        jobs: JSON files; ``job_rows`` a database with the table and the column of such jobs.
        secrets: Files and folders that hold keys and tokens.
        own: Documents that are about the program itself.
    """

    title: str
    persona: Sequence[str]
    memory: Sequence[str]
    checklist: str = ""
    days: str = ""
    sessions: Sequence[str]
    databases: Sequence[tuple[str, str, str, str]] = ()
    jobs: Sequence[str]
    job_rows: tuple[str, str, str] | None = None
    skills: Sequence[str]
    secrets: Sequence[str]
    own: Sequence[str] = ()


ASSISTANTS = {
    "openclaw": Assistant(
        title="OpenClaw",
        persona=("{w}IDENTITY.md", "{w}SOUL.md"),
        memory=("{w}USER.md", "{w}MEMORY.md"),
        checklist="{w}HEARTBEAT.md",
        days="{w}memory",
        sessions=("agents/*/sessions", "agents/*/session-sqlite-import-archive"),
        databases=(
            (
                "agents/*/agent/openclaw-agent.sqlite",
                "transcript_events",
                "event_json",
                "ORDER BY session_id, seq",
            ),
        ),
        jobs=("cron/jobs.json",),
        job_rows=("state/openclaw.sqlite", "cron_jobs", "job_json"),
        skills=("{w}skills", "skills"),
        secrets=("openclaw.json", ".env", "credentials", "identity", "agents/*/agent/auth-profiles.json"),
        own=("{w}AGENTS.md", "{w}TOOLS.md", "{w}BOOT.md"),
    ),
    "hermes": Assistant(
        title="Hermes Agent",
        persona=("SOUL.md",),
        memory=("memories/USER.md", "memories/MEMORY.md"),
        sessions=("sessions",),
        databases=(("state.db", "messages", "role, content, timestamp", "ORDER BY id"),),
        jobs=("cron/jobs.json",),
        skills=("skills",),
        secrets=("config.yaml", ".env", "auth.json", "mcp-tokens"),
        own=("AGENTS.md",),
    ),
    "nanobot": Assistant(
        title="nanobot",
        persona=("{w}IDENTITY.md", "{w}SOUL.md"),
        memory=("{w}USER.md", "{w}memory/MEMORY.md"),
        checklist="{w}HEARTBEAT.md",
        sessions=("{w}memory", "{w}sessions", "sessions"),
        jobs=("{w}cron/jobs.json", "cron/jobs.json"),
        skills=("{w}skills",),
        secrets=("config.json", ".env"),
        own=("{w}AGENTS.md", "{w}TOOLS.md"),
    ),
}


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A schedule; ``why`` is the reason why it cannot come, else there is a ``request``."""

    id: str
    place: str
    text: str
    ask: bool = True
    request: TriggerRequest | None = None
    why: str = ""


@dataclass(slots=True)
class Found:
    """
    The content of a home that can move in; of texts that looks like a secret is masked.

    ``persona`` and ``checklist`` are texts; ``memory`` has texts by their path, ``skills`` files by the name
    of the skill, ``secrets`` places with the names of what they hold.
    """

    persona: str = ""
    checklist: str = ""
    memory: dict[str, str] = field(default_factory=dict)
    jobs: list[ForeignJob] = field(default_factory=list)
    skills: dict[str, dict[str, bytes]] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        """Return a short name of exactly that part which becomes instructions."""
        skills = {
            name: {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
            for name, files in self.skills.items()
        }
        jobs = [[job.id, job.text, job.ask, repr(job.request)] for job in self.jobs]
        shown = [self.persona, self.checklist, self.memory, skills, jobs]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


class ForeignHome:
    """A home of a kind of assistant. If it has no folder ``workspace`` it may be that folder itself."""

    def __init__(self, kind: str, folder: ForeignFolder, zone: tzinfo | None) -> None:
        self.kind = kind
        self.folder = folder
        self._assistant = ASSISTANTS[kind]
        self._zone = zone
        self._workspace = "workspace/" if "workspace" in folder.entries()[1] else ""

    def read(self) -> Found:
        """Read everything but the histories."""
        assistant, folder = self._assistant, self.folder
        found = Found(persona="\n\n".join(filter(None, map(self._document, assistant.persona))))
        found.checklist = self._document(assistant.checklist) if assistant.checklist else ""
        found.memory = {self._path(each): text for each in assistant.memory if (text := self._document(each))}
        found.jobs = list(self._jobs())
        for path in assistant.skills:
            listed = folder.text(f"{self._path(path)}/.bundled_manifest").split("\n")
            self._add_skills(
                self._path(path), found, frozenset(each.partition(":")[0].strip() for each in listed)
            )
        for place, is_file in (each for path in assistant.secrets for each in self._places(path)):
            found.secrets.append(place + (_secrets_in(folder.text(place)) if is_file else "/"))
        found.own += [place for path in assistant.own for place, _ in self._places(path)]
        return found

    def messages(self) -> Iterator[Message]:
        """Yield the messages of all histories, and the notes of days, with ids made of what they say."""
        assistant, last = self._assistant, ""
        for value in self._values():
            message = self._message(value)
            if message is not None:
                last = message.id or "" if message.role == "user" else last
                yield message.model_copy(update={"turn": last or message.id})
        for name in self.folder.entries(self._path(assistant.days))[0] if assistant.days else ():
            if (day := _DAY.fullmatch(name)) is None or (at := _time(f"{day[1]}T12:00", self._zone)) is None:
                continue
            for part in self._document(f"{assistant.days}/{name}").split("\n\n"):
                if part.strip():
                    yield self._made("assistant", part.strip(), at)

    # ── inside ──

    def _path(self, path: str) -> str:
        return path.replace("{w}", self._workspace)

    def _document(self, path: str) -> str:
        """Return a document; the marks between the entries of Hermes' memory become empty lines."""
        return _REDACTOR.text(self.folder.text(self._path(path)).replace("\n§\n", "\n\n"))

    def _places(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield the paths that there are, a ``*`` being any folder, and True for each that is a file."""
        before, star, behind = self._path(path).partition("*")
        if star:
            for name in self.folder.entries(before.rstrip("/"))[1]:
                yield from self._places(f"{before}{name}{behind}")
            return
        parent, _, name = before.rpartition("/")
        files, folders = self.folder.entries(parent)
        if name in files or name in folders:
            yield before, name in files

    def _values(self) -> Iterator[Any]:
        """Yield the lines of all histories."""
        for path in dict.fromkeys(each for one in self._assistant.sessions for each, _ in self._places(one)):
            files, folders = self.folder.entries(path)
            below = [
                f"{name}/{each}" for name in folders for each in self.folder.entries(f"{path}/{name}")[0]
            ]
            for name in [*files, *below]:
                if ".jsonl" in name and ".deleted" not in name and not name.endswith(".lock"):
                    yield from (value for _, value in self.folder.lines(f"{path}/{name}"))
        for pattern, table, columns, order in self._assistant.databases:
            for path, _ in self._places(pattern):
                for row in self.folder.rows(path, table, columns, order):
                    yield (
                        dict(zip(columns.split(", "), row, strict=True)) if len(row) > 1 else _loaded(row[0])
                    )

    def _message(self, value: Any) -> Message | None:
        """Read a line of a history; None for tools, settings and what has no text or time."""
        if not isinstance(value, dict):
            return None
        inner = value["message"] if isinstance(value.get("message"), dict) else value
        role = inner.get("role", "assistant" if "cursor" in value else None)
        at = _time(value.get("timestamp"), self._zone) or _time(inner.get("timestamp"), self._zone)
        text = _clean(_text_of(inner.get("content")))
        if role not in ("user", "assistant") or not text or at is None or text in _SILENT:
            return None
        return self._made(role, text, at)

    def _made(self, role: Any, text: str, at: datetime) -> Message:
        title, is_long = self._assistant.title, len(text) > _MAX_MESSAGE_CHARS
        text = _REDACTOR.text(f"{text[:_MAX_MESSAGE_CHARS]}…" if is_long else text)
        said = f"{self.kind}\n{role}\n{at.isoformat()}\n{text}".encode()
        return Message(
            role=role,
            content=text,
            id=f"import.{hashlib.sha256(said).hexdigest()[:24]}",
            timestamp=at,
            scope=str(OWNER),
            origins=(untrusted_origin("file", f"the history of {title}", at),),
        )

    def _jobs(self) -> Iterator[ForeignJob]:
        """Yield the schedules; of those with the same id the first."""
        known: set[str] = set()
        for value, place, text in self._job_values():
            name = _clean(value.get("id") or value.get("jobId")) if isinstance(value, dict) else ""
            if len(known) >= _MAX_JOBS:
                self.folder.note(place, f"only the first {_MAX_JOBS} schedules are read")
                return
            if name not in known:
                line = text.count("\n", 0, max(text.find(json.dumps(name)), 0)) + 1
                yield read_job(value, name, f"{place}:{line}" if text else f"{place}: {name}")
            known.add(name)

    def _job_values(self) -> Iterator[tuple[Any, str, str]]:
        """Yield what may be a schedule, with its file and the text of that."""
        for path in dict.fromkeys(map(self._path, self._assistant.jobs)):
            value, text = self.folder.json(path), self.folder.text(path)
            jobs = value.get("jobs") if isinstance(value, dict) else value
            yield from ((job, path, text) for job in (jobs if isinstance(jobs, list) else ()))
        if (rows := self._assistant.job_rows) is not None:
            yield from ((_loaded(raw), rows[0], "") for (raw,) in self.folder.rows(*rows))

    def _add_skills(self, path: str, found: Found, bundled: frozenset[str], depth: int = 0) -> None:
        """Add the sound skills of a folder, and of its folders that are none themselves."""
        skills = found.skills
        for name in self.folder.entries(path)[1]:
            here = f"{path}/{name}"
            if name.startswith("."):
                continue
            if len(skills) >= _MAX_SKILLS:
                self.folder.note(here, f"only {_MAX_SKILLS} skills are read")
                return
            if "SKILL.md" not in self.folder.entries(here)[0]:
                if depth < 2:
                    self._add_skills(here, found, bundled, depth + 1)
                continue
            files: dict[str, bytes] = {}
            try:
                skill = parse_skill(self.folder.content(f"{here}/SKILL.md") or b"").name
                self._add_files(here, "", files)
            except SkillInvalid as error:
                self.folder.note(here, str(error))
                continue
            if not bundled.isdisjoint((name, skill)):
                found.own.append(here)
            elif skills.setdefault(skill, files) is not files:
                self.folder.note(here, f"is a second skill named {skill!r}")

    def _add_files(self, skill: str, below: str, files: dict[str, bytes]) -> None:
        """Add the files of a skill. Raises SkillInvalid: there are too many, or one holds a secret."""
        names, folders = self.folder.entries(f"{skill}/{below}".rstrip("/"))
        for name in names:
            content = self.folder.content(f"{skill}/{below}{name}", _MAX_SKILL_BYTES)
            files[f"{below}{name}"] = content or b""
            text = (content or b"").decode("utf-8", "replace")
            if name.startswith(".env") or _REDACTOR.text(text) != text:
                raise SkillInvalid(f"has what looks like a secret in {below}{name}")
            if len(files) > _MAX_SKILL_FILES or sum(map(len, files.values())) > _MAX_SKILL_BYTES:
                raise SkillInvalid(f"is more than {_MAX_SKILL_FILES} files or {_MAX_SKILL_BYTES} bytes")
        for name in folders:
            if not name.startswith(".") and name != "__pycache__":
                self._add_files(skill, f"{below}{name}/", files)


def read_job(value: Any, name: str, place: str) -> ForeignJob:
    """Read a job of any of the assistants; total."""
    schedule = value.get("schedule") if isinstance(value, dict) else None
    if not isinstance(schedule, dict) or not name:
        return ForeignJob(name, place, "", why="is not a job with an id and a schedule")
    given = value.get("payload")
    payload: dict[str, Any] = given if isinstance(given, dict) else {}
    kind, delivery, repeat = payload.get("kind"), value.get("delivery"), value.get("repeat")
    text = _clean(payload.get("message") or payload.get("text") or value.get("prompt"))
    request, why = read_schedule(schedule), ""
    if value.get("no_agent") or value.get("script") or kind in ("command", "script"):
        why = "runs a program"
    elif kind == "system_event":
        why = "is a job of the program itself"
    elif isinstance(delivery, dict) and delivery.get("mode") == "webhook":
        why = "sends its result to a webhook"
    elif isinstance(repeat, dict) and repeat.get("times") and schedule.get("kind") != "once":
        why = "runs only a certain number of times"
    elif not 0 < len(text) <= MAX_JOB_CHARS:
        why = f"has no text, or more than {MAX_JOB_CHARS} characters"
    elif isinstance(request, str):
        why = request
    masked = _REDACTOR.text(text)
    if why or isinstance(request, str):
        return ForeignJob(name, place, masked[:MAX_JOB_CHARS], why=why)
    return ForeignJob(name, place, masked, kind != "systemEvent", request)


def read_schedule(schedule: dict[str, Any]) -> TriggerRequest | str:
    """Return the request for a schedule, or why there is none."""
    kind = schedule.get("kind")
    zone = schedule.get("tz") if isinstance(schedule.get("tz"), str) else ""
    if kind in ("at", "once"):
        given = [schedule.get(each) for each in ("at", "run_at", "atMs", "at_ms")]
        at = next((found for each in given if (found := _time(each, UTC)) is not None), None)
        up = None if at is None else at.astimezone(UTC) + timedelta(seconds=59)
        return "has no time" if up is None else TriggerRequest(at=f"{up:%Y-%m-%d %H:%M}", zone="UTC")
    if kind in ("every", "interval"):
        for key, minutes in (
            ("everyMs", 60_000),
            ("every_ms", 60_000),
            ("minutes", 1),
            ("interval_seconds", 60),
        ):
            number = schedule.get(key)
            if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < 1e15:
                return TriggerRequest(every_minutes=number / minutes)
        return "has no interval"
    fields = str(schedule.get("expr") or "").split()
    if kind != "cron" or not fields:
        return f"has a schedule of the kind {str(kind)[:40]!r}"
    # With seconds, a sixth field comes first.
    fields = fields[1:] if len(fields) == 6 and fields[0] == "0" else fields
    return TriggerRequest(cron=" ".join(fields), zone=zone or "")


def _clean(value: Any) -> str:
    """Return a value as a text that can be stored anywhere: without NUL and halves of characters."""
    return str(value or "").replace("\0", "").encode("utf-8", "replace").decode().strip()


def _loaded(raw: Any) -> Any:
    try:
        return json.loads(raw)
    except (TypeError, ValueError, RecursionError):
        return None


def _text_of(content: Any) -> str:
    """Return the text of a message's content: a text, or parts of which some are text."""
    if isinstance(content, str):
        return _text_of(_loaded(content[6:])) if content.startswith("\0json:") else content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict) and "text" in str(part.get("type")))
    return "\n".join(text for text in texts if isinstance(text, str))


def _time(value: Any, zone: tzinfo | None) -> datetime | None:
    """Return the instant of a text (by default in ``zone``), or of seconds or milliseconds."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            at = (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            at = datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return at if 2000 <= at.year < 2200 else None


def _secrets_in(text: str) -> str:
    """Return the names of fields and variables that hold secrets, as the end of a line."""
    names: dict[str, None] = {}
    for line in text.splitlines():
        name = line[:200].replace("=", ":").partition(":")[0].strip(" \t\"'{,-")
        if name.isprintable() and name and " " not in name and names_a_secret(name):
            names[name[:60]] = None
    return f": {', '.join(list(names)[:12])}" if names else ""
