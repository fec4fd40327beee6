"""
The text of a question about a tool call: the whole call, and whose idea it may be. Pure.

Whatever is too long for a message stands in a file that goes with it, with its size and its SHA-256 in the
message. In both a person sees every character (`gateway.turns.approvals.text.visible`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

from agent_core.models import ToolCall
from agent_core.provenance import KEPT, Origins, Trust, described, trust_of
from agent_core.tools.forms import Form
from agent_core.tools.grants import Scope
from agent_core.tools.grants import described as grant_text
from gateway.turns.approvals.text import line, literal, visible

_QUOTED_CHARS = 1_500
_MOST_QUOTED = 20


def asking_text(
    name: str,
    call: ToolCall,
    until: datetime,
    *,
    zone: tzinfo | None,
    email_style: bool,
    origins: Origins = (),
    review: str = "",
    is_attached: bool = True,
    offer: Scope | None = None,
    is_again: bool = False,
    also: Sequence[tuple[ToolCall, str]] = (),
) -> str:
    """
    The text of the question.

    ``review`` is what the tool itself shows of the call, such as a diff, in the place of the bare arguments.
    ``offer`` is what can be granted. With ``is_attached`` what `attached_text` gives goes with it; without,
    all of it stands in the question. With ``is_again`` somebody said yes before what it is about changed.
    ``also`` are further calls, and what their tools show of them: a yes is to all.
    """
    told = _told(call, review, also)
    whole = attached_text(call, review, also)
    idea = (
        f"It may not be your idea: before this I was shown {described(origins, most=KEPT)}.\n\n"
        if trust_of(origins) is not Trust.OWNER
        else ""
    )
    again = "What you approved has changed since, so I ask again.\n\n" if is_again else ""
    how = (
        f"Answer with `yes` or `no` in the first line, or with `!approve {name}` or `!reject {name}`."
        if email_style
        else f"Answer `yes` or `no`, react with ✅ or ❌, or write `!approve {name}` or `!reject {name}`."
    )
    grant = f"\n\nTo allow {grant_text(offer)} for an hour: `!grant {name} 1h`" if offer else ""
    at = until.astimezone(zone).strftime("%H:%M on %d %B")
    if whole and is_attached:
        raw = whole.encode()
        digest = hashlib.sha256(raw).hexdigest()
        more = f"All of it is in the file `{name}.txt`: {len(raw)} bytes, SHA-256 `{digest}`.\n\n"
        shown = literal(told, _QUOTED_CHARS)
    else:
        more = ""
        shown = literal(told, max(_QUOTED_CHARS, 2 * len(whole) * max(1, len(told))), most=len(told))
    return (
        f"**{name}**: I need your approval before I use {_uses(call, also)}:\n\n"
        f"{shown}\n\n"
        f"{more}"
        f"{again}"
        f"{idea}"
        f"{how} I wait until {at}.{grant}"
    )


def attached_text(call: ToolCall, review: str = "", also: Sequence[tuple[ToolCall, str]] = ()) -> str:
    """The whole call, for a file that goes with the question; empty if the question itself has it."""
    told = {key: visible(value) for key, value in _told(call, review, also).items()}
    each = _QUOTED_CHARS // max(1, len(told))
    if len(told) <= _MOST_QUOTED and all(len(value) <= each for value in told.values()):
        return ""
    parts = [f"{line(key)}:\n{value}".replace("\n", "\n    ") for key, value in told.items()]
    return f"{_uses(call, also)}\n\n".replace("`", "") + "\n\n".join(parts) + "\n"


def form_text(name: str, form: Form, until: datetime, *, zone: tzinfo | None, email_style: bool) -> str:
    """The question of a server, in full and in its own words, and how to answer it."""
    told = {"it says": form.message, **{f"it wants: {each.name}": each.described() for each in form.fields}}
    if form.address:
        told["it wants you to open"] = form.address
    size = sum(len(visible(each)) for each in told.values())
    shown = literal(told, (size + 1) * len(told), most=len(told))
    if form.address:
        how = f"I do not open it. When you have been there and the server may continue: `!answer {name} yes`."
        short = ", or answer `yes` or `no`"
    elif not form.fields:
        how, short = f"If the server may continue: `!answer {name} yes`.", ", or answer `yes` or `no`"
    elif len(form.fields) == 1:
        how, short = f"Your answer: `!answer {name} VALUE`, or reply to this message with it.", ""
    else:
        example = "; ".join(f"{line(each.name)}: …" for each in form.fields)
        how, short = f"Your answer: `!answer {name} {example}`, or reply to this message with it.", ""
    no = f"`!reject {name}` in the first line" if email_style else f"❌ or `!reject {name}`"
    at = until.astimezone(zone).strftime("%H:%M on %d %B")
    return (
        f"**{name}**: the server `{line(form.asker)}` asks for something before it continues. These are "
        f"its words, not mine:\n\n{shown}\n\n{how} To say no: {no}{short}. Your answer goes to that "
        f"server: do not give it a password or a code. I wait until {at}, or until the person who asked "
        "for it writes something else here."
    )


def expired_text(name: str, tool: str) -> str:
    """The text for a question that nobody has decided in time."""
    return f"Nobody answered `{name}` in time, so I continue without `{tool}`."


def _uses(call: ToolCall, also: Sequence[tuple[ToolCall, str]]) -> str:
    """The tools of a question, with the number of the calls if there are several."""
    names = [f"`{line(name)}`" for name in dict.fromkeys(one.name for one in _calls(call, also))]
    told = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{told} {len(also) + 1} times" if len(names) == 1 and also else told


def _calls(call: ToolCall, also: Sequence[tuple[ToolCall, str]]) -> list[ToolCall]:
    return [call, *(one for one, _ in also)]


def _told(call: ToolCall, review: str, also: Sequence[tuple[ToolCall, str]] = ()) -> Mapping[str, str]:
    if also:
        every, mixed = [(call, review), *also], len({one.name for one in _calls(call, also)}) > 1
        return {
            f"{number}. {f'{line(one[0].name)}, ' if mixed else ''}{key}": value
            for number, one in enumerate(every, start=1)
            for key, value in (_told(*one) or {"": ""}).items()
        }
    if review:
        return {"what would be done": review}
    return {key: _shown(value) for key, value in call.arguments.items()}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
