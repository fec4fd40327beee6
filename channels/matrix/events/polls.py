"""
Polls (``m.poll.*``, MSC3381, also under its unstable names): their question as text, and how they have ended.
Pure. Who votes sends a response, and the last one before the end counts; of more choices than a voter has,
the first ones do. Choices that the poll does not have make a vote invalid, as the specification says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from channels.matrix.client.json_access import JsonObject, object_of, objects_of, text_of
from channels.matrix.events.matrix_threads import EVENT_ID

STARTS = ("m.poll.start", "org.matrix.msc3381.poll.start")
ENDS = ("m.poll.end", "org.matrix.msc3381.poll.end")
RESPONSES = ("m.poll.response", "org.matrix.msc3381.poll.response")
_MAX_ANSWERS = 20
"""As the specification says."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll: its question, its choices by their ids, and how many of them a voter has."""

    question: str
    choices: Mapping[str, str]
    most: int

    @property
    def text(self) -> str:
        """The question and the choices, for somebody who reads them."""
        return "\n".join([f"[A poll] {self.question}", *(f"- {each}" for each in self.choices.values())])


def poll_in(content: JsonObject) -> Poll | None:
    """Return the poll that the content of an event starts; None if it starts none that can be read."""
    start = object_of(content, "m.poll") or object_of(content, STARTS[1])
    question = _words(object_of(start, "question"))
    if not question:
        return None
    choices = {
        text_of(each, "m.id") or text_of(each, "id"): _words(each) for each in objects_of(start, "answers")
    }
    named = [(key, text) for key, text in choices.items() if key and text]
    most = start.get("max_selections")
    return Poll(question, dict(named[:_MAX_ANSWERS]), most if isinstance(most, int) and most > 0 else 1)


def poll_of(event: JsonObject) -> str:
    """Return the id of the poll that an event is a vote in, or the end of; empty if it is neither."""
    relation = object_of(object_of(event, "content"), "m.relates_to")
    target = text_of(relation, "event_id")
    return target if relation.get("rel_type") == "m.reference" and EVENT_ID.fullmatch(target) else ""


def result_of(poll: Poll, votes: Iterable[JsonObject], ended_at_ms: Any) -> str:
    """Return what has come of a poll, in one line; ``votes`` are related events in clear, newest first."""
    until = ended_at_ms if isinstance(ended_at_ms, int) else 1 << 62
    last: dict[str, list[str]] = {}
    for event in votes:
        at = event.get("origin_server_ts")
        if event.get("type") in RESPONSES and isinstance(at, int) and at <= until:
            last.setdefault(text_of(event, "sender"), _chosen(object_of(event, "content"), poll))
    counts = Counter(key for chosen in last.values() for key in chosen)
    told = ", ".join(f"{poll.choices[key]}: {count}" for key, count in counts.most_common())
    return f"[The poll “{poll.question}” has ended. Votes: {told or 'none'}]"


def _chosen(content: JsonObject, poll: Poll) -> list[str]:
    found = content.get("m.selections", object_of(content, RESPONSES[1]).get("answers"))
    chosen = list(dict.fromkeys(map(str, found)))[: poll.most] if isinstance(found, list) else []
    return chosen if all(key in poll.choices for key in chosen) else []


def _words(block: JsonObject) -> str:
    """The plain text of an extensible event, or of what stood in its place before."""
    written = next((text for each in objects_of(block, "m.text") if (text := text_of(each, "body"))), "")
    text = written or text_of(block, "org.matrix.msc1767.text") or text_of(block, "body")
    return " ".join(text.split())
