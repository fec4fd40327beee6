"""
Reads the formatted text of a message where it says more than the plain one: spoilers, folded details, raised
figures and formulas (Matrix client-server specification, "m.room.message msgtypes"). Pure, linear. Anything
else is read from ``body``, which every client writes for readers. Here counts what the room is shown: the
text inside an element, not its attributes. Of these only the two that clients do show are read, the reason of
a spoiler and the source of a formula, each named as what it is; what a style hides is left out
(`html_to_text`).
"""

from __future__ import annotations

import html
import re

from agent_core.html_to_text import html_to_text
from channels.matrix.client.json_access import JsonObject, text_of

_TAG = re.compile(r"""<(/?)(span|div)\b((?:"[^"]*+"|'[^']*+'|[^<>"'])*+)>""", re.IGNORECASE)
_SPOILER = re.compile(r"""\bdata-mx-spoiler(?:\s*=\s*(?:"([^"]*)"|'([^']*)'))?""", re.IGNORECASE)
_FORMULA = re.compile(r"""\bdata-mx-maths\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_SAYS_MORE = re.compile(r"<(?:details|sup)\b|\bdata-mx-(?:spoiler|maths)\b", re.IGNORECASE)


def formatted_text(content: JsonObject, plain: str) -> str:
    """
    Return the formatted text of a message as readers see it; empty if it says no more than ``plain``.

    A spoiler becomes ``||text||``, with its reason in front.
    """
    if text_of(content, "format") != "org.matrix.custom.html":
        return ""
    formatted = text_of(content, "formatted_body").rpartition("</mx-reply>")[2]
    more = {found[0].lower() for found in _SAYS_MORE.finditer(formatted)}
    # Clients put the source of a formula into the plain text.
    sources = [" ".join(_value(found).split()) for found in _FORMULA.finditer(formatted)]
    said = " ".join(plain.split())
    if not more or (more == {"data-mx-maths"} and all(source in said for source in sources)):
        return ""
    return html_to_text(_with_marks(formatted))


def _with_marks(formatted: str) -> str:
    """Put into words what is an attribute of an element."""
    out: list[str] = []
    ends: list[str] = []
    """What stands at the end of each open element."""
    position = 0
    for tag in _TAG.finditer(formatted):
        out.append(formatted[position : tag.start()])
        position = tag.end()
        if tag[1]:
            out.append((ends.pop() if ends else "") + tag[0])
            continue
        before, behind = "", ""
        if spoiler := _SPOILER.search(tag[3]):
            reason = _value(spoiler)
            before, behind = (f"({html.escape(reason)}) " if reason else "") + "||", "||"
        elif (formula := _FORMULA.search(tag[3])) and (source := _value(formula)):
            inside = html.unescape(formatted[tag.end() : tag.end() + 2 * len(source) + 100])
            behind = "" if source in inside else f"[formula: {html.escape(source)}]"
        ends.append(behind)
        out.append(tag[0] + before)
    return "".join([*out, formatted[position:]])


def _value(found: re.Match[str]) -> str:
    return html.unescape(next(filter(None, found.groups()), ""))
