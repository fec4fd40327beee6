"""Erasures outside of a running gateway: those that were interrupted, requests that are due, and tokens."""

# ruff: noqa: PLC0415 - hardly any start needs it

from __future__ import annotations

import shutil
from collections.abc import Collection
from datetime import UTC, datetime

import structlog

from agent_core.storage.layout import Layout
from gateway.operations.privacy.erasure_journal import check_no_move_pending, interrupted_erasures
from gateway.operations.privacy.erasure_requests import EXPORTS, due_requests, withdraw
from gateway.settings import Settings
from gateway.store.place import place_of_queue
from gateway.system.home import Home

_log = structlog.get_logger(__name__)


def log_interrupted_erasures(settings: Settings, home: Home) -> None:
    """
    Log an interrupted `squidbot forget`: the daemon works, but somebody waits to be erased.

    Raises:
        StateUnusable: A person has half moved; the rest of the move would replace what is said meanwhile.
    """
    layout = Layout(home.root, home.path(settings.agents.workspace))
    check_no_move_pending(layout)
    if people := interrupted_erasures(layout):
        _log.warning("erasure.unfinished", people=len(people), remedy="squidbot check --data")


def run_erasure_requests(settings: Settings, home: Home) -> None:
    """
    Forget the people who have asked for it and whose time has come, under the home's lock.

    One that fails is logged and stays for the next start, which also completes what was killed.
    """
    shutil.rmtree(home.root / EXPORTS, ignore_errors=True)
    now = datetime.now(UTC)
    due = due_requests(home.root, now)
    if not due:
        return
    from gateway.operations.privacy.inventory import Person
    from gateway.operations.privacy.person_erasure import forget_person

    layout = Layout(home.root, home.path(settings.agents.workspace))
    for request in due:
        person = Person(frozenset(request.addresses))
        try:
            forget_person(
                layout,
                place_of_queue(home.database, settings.store_url),
                person,
                now=now,
                storage=settings.attachments.storage(home.root),
            )
            tokens_of(settings, home, person.addresses, new="")
            withdraw(home.root, request.addresses)
        except Exception as error:  # noqa: BLE001 - whatever it is, everybody else has a daemon
            _log.error("erasure.failed", error=f"{type(error).__name__}: {error}", remedy="squidbot forget")
        else:
            _log.info("erasure.done", addresses=len(request.addresses))


def tokens_of(settings: Settings, home: Home, people: Collection[str], *, new: str | None = None) -> int:
    """Count the tokens that speak for these people; give them to ``new``, or to nobody if that is empty."""
    import anyio
    from anyio import to_thread

    from channels.api.token_store import ApiTokens
    from gateway.app.state_folders import account_folders
    from gateway.system.clock import SystemClock

    def use(found: ApiTokens) -> int:
        count = sum(one.person in people for one in found.rows())
        if new is not None and count:
            found.reassign(people, new)
        return count

    async def open_and_use(endpoint: str) -> int:
        async with account_folders(settings, home, SystemClock()) as folders:
            return await to_thread.run_sync(use, ApiTokens(folders(endpoint)))

    kinds = settings.channels.kinds()
    endpoints = [name for name in settings.channels.enabled() if kinds[name] == "api"]
    return anyio.run(open_and_use, endpoints[0]) if endpoints else 0
