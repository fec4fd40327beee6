"""
The effect of a tool call on the world, as the tool's own code declares it; a server or a model has no say. A
tool declares ``effect``, or ``effect_of(arguments)`` if the effect depends on them. A tool that declares
nothing counts as one that executes. See `agent_core.ports.ToolPort` for what else a tool may declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from agent_core.ports import ToolPort
from agent_core.provenance import Origins


class Effect(StrEnum):
    """The classes of effects, the most harmless first."""

    READ = "read"
    """What anybody may know, such as the text of a skill."""
    PRIVATE_READ = "private_read"
    """What the people of this conversation may know: their history, files, the workspace."""
    WRITE_WORKSPACE = "write_workspace"
    """Changes files that no prompt is made of; the earlier version is kept."""
    PERSIST = "persist"
    """Lasts and comes back by itself: memory, skills, schedule, settings."""
    SEND = "send"
    """Other people get something."""
    NETWORK_GET = "network_get"
    """Fetches something; the address itself tells its server something."""
    NETWORK_SEND = "network_send"
    """Sends data to a server."""
    EXECUTE = "execute"
    """Runs a program."""


@dataclass(frozen=True, slots=True)
class Review:
    """
    The view of a call that a person approves.

    ``text`` is all of it, such as a diff; the call runs only while ``state``, such as a hash, is unchanged.
    Nobody is asked about a call that ``changes_nothing``.
    """

    text: str
    state: str = ""
    changes_nothing: bool = False


class Wording(NamedTuple):
    """
    The parts of a call that its author must have written for it to count as theirs.

    ``texts`` are its words or command, ``numbers`` times and people; ``kept`` are origins of what else it
    stores.
    """

    texts: Sequence[str]
    numbers: Sequence[str] = ()
    kept: Origins = ()


def effect_of(tool: ToolPort, arguments: Mapping[str, Any]) -> Effect:
    """The effect of one call."""
    decide = getattr(tool, "effect_of", None)
    found = decide(arguments) if decide is not None else getattr(tool, "effect", Effect.EXECUTE)
    return Effect(found)


def targets_of(tool: ToolPort, arguments: Mapping[str, Any]) -> Sequence[str] | None:
    """The targets of a call, such as recipients or fetched addresses. None: the tool does not say."""
    named = getattr(tool, "targets", None)
    return None if named is None else tuple(named(arguments))


def creates_only(tool: ToolPort, arguments: Mapping[str, Any]) -> bool:
    """Return True if the tool says that a writing call changes nothing that existed before this run."""
    declared = getattr(tool, "makes_new", None)
    return declared is not None and bool(declared(arguments))


def needs_approval(tool: ToolPort, arguments: Mapping[str, Any]) -> bool:
    """Return True if this call needs an approval regardless of the policy."""
    guards = getattr(tool, "guards", None)
    return guards is not None and bool(guards(arguments))


def is_note(tool: ToolPort, arguments: Mapping[str, Any]) -> bool:
    """Return True if a call only stores words for the people of the conversation."""
    declared = getattr(tool, "is_note", None)
    return declared is not None and bool(declared(arguments))


async def wording_of(tool: ToolPort, arguments: Mapping[str, Any]) -> Wording | None:
    """Return the words a person must have written for a call to be theirs; None: words never suffice."""
    wording = getattr(tool, "wording", None)
    found: Wording | None = None if wording is None else await wording(arguments)
    return found


async def review_of(tool: ToolPort, arguments: Mapping[str, Any]) -> Review | None:
    """Return the view of a call for its approval; None if its arguments say it all."""
    review = getattr(tool, "review", None)
    found: Review | None = None if review is None else await review(**arguments)
    return found


_approved: ContextVar[str] = ContextVar("approved_state", default="")


def approved_state() -> str:
    """
    The `Review.state` that a person has approved for the current call; empty: nobody was asked.

    For a tool whose effect comes after some time, or that looks once more right before it.
    """
    return _approved.get()


@contextmanager
def approving(state: str) -> Iterator[None]:
    """Inside the block, `approved_state` returns this."""
    token = _approved.set(state)
    try:
        yield
    finally:
        _approved.reset(token)
