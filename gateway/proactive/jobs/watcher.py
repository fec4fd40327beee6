"""
Looks at what jobs watch, and tells what is new: once, over kills, because it is committed with what was seen.

The first look is the base line. A look asks the server only for what has changed, and costs no model. After a
failure the pauses grow up to a day; the person hears of it at the first look, or after a day.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from agent_core.errors import ToolError
from agent_core.language import _
from agent_core.ports import Clock
from agent_core.prompt import background_text
from agent_core.provenance import untrusted_origin
from agent_core.tools.web.web_fetch import status_text
from channels.base import Channel, ChannelError, SupportsFolders
from channels.heartbeat.channel import NEWS, HeartbeatChannel
from gateway.proactive.jobs.scheduler import report_message
from gateway.proactive.jobs.triggers import AddressWatch, next_after
from gateway.routing.conversations import Conversations
from gateway.store.model import Job, JobKind
from gateway.store.stores import Pending, Queue, StoreUnavailable

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles
    from agent_core.tools.web.web_client import Received, WebClient

_DAY = timedelta(days=1)
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Watcher:
    """
    Looks for jobs at once and in the background.

    ``client`` and ``files`` are built at the first look; ``channels`` may have folders of mails;
    ``check_ins``: there are any.
    """

    store: Queue
    conversations: Conversations
    clock: Clock
    client: Callable[[], WebClient]
    _: KW_ONLY
    files: Callable[[], JournaledFiles]
    channels: Mapping[str, Channel]
    check_ins: bool = False

    def __post_init__(self) -> None:
        self._client: WebClient | None = None
        self._waiting: dict[str, tuple[Job, AddressWatch, datetime]] = {}
        self._busy: set[str] = set()
        self._news = anyio.Event()

    def begin(self, job: Job, timing: AddressWatch, instant: datetime) -> None:
        """Look soon for a job that is due; one that finds no place is still due later."""
        if job.id not in self._busy and len(self._waiting) < 200:
            self._waiting[job.id] = job, timing, instant
            self._news.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with anyio.create_task_group() as looks:
            while True:
                while self._waiting and len(self._busy) < 4:
                    job_id = next(iter(self._waiting))
                    self._busy.add(job_id)
                    looks.start_soon(self._look, *self._waiting.pop(job_id))
                await self._news.wait()
                self._news = anyio.Event()

    async def _look(self, job: Job, timing: AddressWatch, instant: datetime) -> None:
        try:
            await self.check(job, timing, instant)
        except StoreUnavailable as error:
            _log.warning("watch.blocked", job=job.id, error=str(error))  # it is still due
        except Exception:  # noqa: BLE001 - one page must not end the looks at others
            _log.exception("watch.failed", job=job.id)
        finally:
            self._busy.discard(job.id)
            self._news.set()

    async def check(self, job: Job, timing: AddressWatch, instant: datetime) -> None:
        """Look once: commit what is new with what was seen, then the next time. Raises StoreUnavailable."""
        present = await self.store.jobs.job(job.id)
        if present is None or present.revision != job.revision:
            return  # a person has changed it meanwhile
        name, now = f"watch:{job.id}", self.clock.now()
        kept = await self.store.inbox.position(job.session.channel, job.account, name)
        state = _State(json.loads(kept) if kept else {})
        try:
            said = await self._news_of(timing, state)
            wait, note = timedelta(0), ""
            state.clear_failures()
        except Exception as error:  # noqa: BLE001 - whatever a library makes of a stranger's page
            failed = error if isinstance(error, _NotNow) else _NotNow(_("what is there cannot be read"))
            if failed is not error:
                _log.exception("watch.unreadable", job=job.id)
            note = str(failed)
            wait, tells = state.fail(now, timing, failed.wait)
            said = ""
            if tells:
                address = timing.shown_address
                said = _("I cannot read {address}: {why}. I keep trying.", address=address, why=note)
        pendings, waits = [], timing.for_check_in and self.check_ins and not note
        if said and waits:
            heartbeat = HeartbeatChannel.name, HeartbeatChannel.account
            told = json.loads(await self.store.inbox.position(*heartbeat, NEWS) or "{}")
            news = background_text([("forwarded", timing.shown_address, "", said)])
            state.add_news(f"{job.text}\n{news}", told.get(job.id))
        positions = {name: json.dumps(state.kept)}
        if said and not waits:
            kind, path = timing.own_place
            origin = untrusted_origin("web", timing.address, now)
            if kind == "mail":
                origin = untrusted_origin("mail", "somebody else", now)
            elif kind == "file":
                origin = untrusted_origin("file", path, now)
            # A failure is no news: neither the heading nor the question for the model is about it.
            about = replace(job, text="", kind=JobKind.REMIND) if note else job
            message = report_message(
                about, f"watch:{instant.isoformat()}{positions[name]}", said, now, origin
            )
            pendings = [Pending(message, session=self.conversations.conversation_for(message))]
        await self.store.inbox.accept(job.session.channel, job.account, pendings, positions)
        following = next_after(timing, max(instant, now + wait))
        await self.store.jobs.record_run(job.id, job.revision, instant, following, note=note)
        _log.info("watch.looked", job=job.id, news=bool(said), failed=bool(note))

    async def _news_of(self, timing: AddressWatch, state: _State) -> str:
        """Return what is new at the address, and note it in the state. Raises `_NotNow`."""
        kind, path = timing.own_place
        if kind == "mail":
            return await self._new_mails(path, timing.part, state)
        from gateway.proactive.jobs.watched_content import (  # noqa: PLC0415 - loads what reads pages
            keys_to_keep,
            news_of,
            read_items,
        )
        from gateway.proactive.jobs.watched_files import read_watched_file  # noqa: PLC0415

        validators, limiter = ("", ""), None
        try:
            if kind:
                read = partial(read_watched_file, self.files(), path, timing.part)
            else:
                client = self._client = self._client or self.client()
                received = await client.get(timing.address, headers=state.conditions)
                if received.status == 304:
                    return ""
                if problem := status_text(received):
                    raise _NotNow(problem, received)
                validators, limiter = received.validators, client.reading
                read = partial(
                    read_items,
                    received.body,
                    received.content_type,
                    address=received.address,
                    part=timing.part,
                )
            content = await anyio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=limiter)
        except (ToolError, ValueError) as error:
            raise _NotNow(str(error)) from error
        seen = state.keys
        state.note(keys_to_keep(content, seen or ()), validators)
        return "" if seen is None else news_of(content, seen)

    async def _new_mails(self, path: str, words: str, state: _State) -> str:
        """Return which mails came into a folder. Its mark stands where a page's ETag would."""
        from gateway.proactive.jobs.watched_content import list_news  # noqa: PLC0415 - loads what reads pages

        accounts = {name: one for name, one in self.channels.items() if isinstance(one, SupportsFolders)}
        name, _colon, folder = path.partition(":")
        if name not in accounts and len(accounts) == 1:
            name, folder = next(iter(accounts)), path
        if name not in accounts:
            known = ", ".join(accounts)
            why = _("say of which account, as in ACCOUNT:FOLDER; there are: {known}", known=known)
            raise _NotNow(why if accounts else _("I have no mailbox"))
        try:
            found = await accounts[name].new_in_folder(folder, state.mark, words=words)
        except ChannelError as error:
            raise _NotNow(str(error)) from error
        state.note([], (found.mark, ""))
        return list_news(found.lines, found.count)


class _NotNow(Exception):
    """Nothing could be read; ``wait`` is how long the server asks not to be asked."""

    def __init__(self, said: str, received: Received | None = None) -> None:
        again = received.retry_after if received is not None else ""
        self.wait = timedelta(seconds=int(again)) if again.isdecimal() and len(again) < 7 else timedelta(0)
        super().__init__(said.rstrip("."))


class _State:
    """The memory of a watch between two looks, as it is committed."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    @property
    def keys(self) -> list[str] | None:
        """The keys of what was seen; None before the first look that succeeded."""
        return self.kept.get("seen")

    @property
    def mark(self) -> str:
        """The place up to which a folder of mails was looked at; empty before the first look."""
        return str(self.kept.get("etag") or "")

    @property
    def conditions(self) -> Mapping[str, str]:
        """The headers that ask for the content only if it has changed."""
        names = {"If-None-Match": self.kept.get("etag"), "If-Modified-Since": self.kept.get("modified")}
        return {name: value for name, value in names.items() if value and value.isascii()}

    def note(self, seen: list[str], validators: tuple[str, str]) -> None:
        """Note what was seen."""
        self.kept["seen"] = seen
        self.kept["etag"], self.kept["modified"] = validators

    def add_news(self, text: str, told: int | None) -> None:
        """Note what waits for the next check-in, with a number; what was told there goes."""
        number = self.kept["number"] = int(self.kept.get("number", 0)) + 1
        news = [each for each in self.kept.get("news", []) if each[0] > (told or 0)]
        if len(news) >= 5:
            news = [[news[0][0], _("Earlier news was left out.")], *news[2:]]
        self.kept["news"] = [*news, [number, text]]

    def clear_failures(self) -> None:
        """Forget earlier failures."""
        for name in ("failures", "since", "told"):
            self.kept.pop(name, None)

    def fail(self, now: datetime, timing: AddressWatch, wait: timedelta) -> tuple[timedelta, bool]:
        """Count a failure; return how long to wait beyond the interval, and True if it is to be told now."""
        failures = self.kept["failures"] = int(self.kept.get("failures", 0)) + 1
        since = datetime.fromisoformat(self.kept.setdefault("since", now.isoformat()))
        tells = not self.kept.get("told") and (self.keys is None or now - since >= _DAY)
        if tells:
            self.kept["told"] = True
        grown = timedelta(seconds=timing.seconds) * (2 ** min(failures - 1, 12) - 1)
        return min(max(grown, wait), _DAY), tells
