"""
Decides whether the answer of a heartbeat run deserves attention, and which part of it. Pure. `HEARTBEAT_OK`
alone, or first or last with few words beside it, is silence; inside a sentence it is text. Leaked reasoning
and sentences known to say nothing are dropped. In doubt the answer is delivered: a needless line costs less
than a lost alert.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

SILENCE = "HEARTBEAT_OK"
URGENT = "URGENT:"
_LONGEST = 6000
_CUT_NOTE = "\n\n[The rest of this alert was left out: it had {chars} characters.]"

_TAGS = "think|thinking|thought|thoughts|reasoning|reflection|analysis|scratchpad"
_OPENS = re.compile(rf"<({_TAGS})\b[^<>]{{0,200}}>", re.IGNORECASE)
_CLOSES = re.compile(rf"</(?:{_TAGS})\s{{0,10}}>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?…:])\s+|\n+")
_FENCED = re.compile(r"^```\w{0,20}|```$")
_MARKS = " \t\n-*#>•_`"

_INTERJECTION = re.compile(
    r"(?:ok(?:ay)?|alright|hmm+|well|right|so|sure|done|good|great)[.!…,]*", re.IGNORECASE
)
_MUSING = re.compile(
    r"""(?:(?:ok(?:ay)?|alright|hmm|well|right|first|now|so|sure)\b[,.!:]?\s+)*
    (?:let\ me|let's|let\ us|going\ to|time\ to
      |i(?:'ll|\ will|\ need\ to|\ should|\ am\ going\ to|'m\ going\ to|\ have\ to)(?:\ now|\ first)?)\s+
    (?:quickly\s+|briefly\s+|just\s+|also\s+)?
    (?:check|look|see|review|go\ through|go\ over|scan|read|think|verify|inspect|examine|consider|start
      |take\ a)\b
    [^.!?…:\n]*[.!?…:]*""",
    re.IGNORECASE | re.VERBOSE,
)
_SUBJECT = r"""(?:everything|all|all\ items|all\ tasks|all\ systems|all\ checks|the\ checklist|your\ checklist
    |things|it\ all|all\ of\ it|the\ list)"""
_WELL = r"""(?:(?:is|are|looks?|seems?|appears?)\s+(?:to\ be\s+)?)?(?:all\s+|still\s+)?
    (?:clear|good|fine|ok(?:ay)?|well|quiet|normal|green|up\ to\ date|in\ order|as\ expected|stable|calm)"""
_TAIL = r"""(?:\s+(?:here|now|so\ far|today|this\ time|for\ now|at\ the\ moment|right\ now|at\ this\ time
    |with\ it|everywhere))*"""
_NEED = r"(?:your\s+)?(?:attention|action|input|response)"
_NONE = r"(?:nothing|no\ (?:news|updates?|alerts?|issues?|problems?|changes?))"
_CHATTER = re.compile(
    rf"""(?:(?:good|great)\ news[,:]\s+)?(?:
    all\ (?:is\ )?(?:clear|good|quiet|well|fine|ok(?:ay)?){_TAIL}
    |{_SUBJECT}\s+{_WELL}{_TAIL}
    |(?:there(?:'s|\ is|\ are|\ was|\ were)\s+|i\ (?:have|see|found)\s+)?{_NONE}(?:,\ {_NONE})*
      (?:\s+(?:new|urgent|important|special|notable|to\ report|to\ do|to\ flag|is\ due|due|found|pending
        |requires|needs|that\ (?:requires|needs?)|requiring|needing|of\ note|{_NEED}|to\ mention|to\ share
        |to\ add|has\ changed|changed))*{_TAIL}
    |no\ (?:further\ |immediate\ |urgent\ )?{_NEED}(?:\ is)?\ (?:needed|required|necessary){_TAIL}
    |nothing\ (?:\w+\ )?(?:needs|requires)\ {_NEED}{_TAIL}
    |(?:i\ )?(?:checked|reviewed|went\ through)(?:\ through)?\ (?:everything|the\ checklist|your\ checklist
      |all\ items|the\ list)(?:,?\ and\ {_SUBJECT}\s+{_WELL})?{_TAIL}
    |(?:have|enjoy)\ (?:a|the|your)\ (?:nice|good|great|lovely)?\s*
      (?:day|evening|night|weekend|morning|afternoon)
    )[.!…]*""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class SilenceVerdict:
    """
    The decision about an answer.

    Args:
        text: The text to deliver; empty for silence.
        urgent: The answer began with ``URGENT:`` (removed).
        reason: Why there is silence, a short constant.
    """

    text: str = ""
    urgent: bool = False
    reason: str = ""


def judge_silence(answer: str) -> SilenceVerdict:
    """Decide which part of a heartbeat run's answer is delivered."""
    spoken = without_thoughts(answer)
    said = _without_musing(spoken)
    if not said:
        return SilenceVerdict(reason="only reasoning" if answer.strip() else "empty")
    if _says_silence(spoken) or _says_silence(said):
        return SilenceVerdict(reason="nothing to say")
    if _is_chatter(said):
        return SilenceVerdict(reason="all clear")
    bare = said.lstrip("*_ ")
    urgent = bare.upper().startswith(URGENT)
    if urgent:
        said = bare[len(URGENT) :].lstrip("*_ \n")
        if not said:
            return SilenceVerdict(reason="empty")
    if len(said) > _LONGEST:
        said = said[:_LONGEST].rstrip() + _CUT_NOTE.format(chars=len(said))
    return SilenceVerdict(said, urgent=urgent)


def is_silence(text: str) -> bool:
    """Return True if an answer is not to be delivered."""
    return not judge_silence(text).text


def fingerprint(text: str) -> str:
    """
    A short hash that is the same for alerts that say the same.

    Letters' case, spaces and marks of Markdown do not count; numbers do, so what grows is another alert.
    """
    words = re.findall(r"[^\W_]+(?:[.,:%/-][^\W_]+)*", text.casefold())
    return hashlib.sha256(" ".join(words).encode("utf-8", "replace")).hexdigest()[:32]


def without_thoughts(text: str) -> str:
    """Without tagged thoughts, closed or not, and without what stands before a tag that is only closed."""
    kept: list[str] = []
    position = 0
    while (opened := _OPENS.search(text, position)) is not None:
        kept.append(text[position : opened.start()])
        closed = _CLOSES.search(text, opened.end())
        if closed is None:
            position = len(text)
            break
        position = closed.end()
    kept.append(text[position:])
    spoken = "".join(kept)
    closings = [found.end() for found in _CLOSES.finditer(spoken)]
    return spoken[closings[-1] if closings else 0 :].strip()


def _says_silence(text: str) -> bool:
    stripped = _without_json(text).strip("*_`.!\"' \n")
    if not stripped:
        return True
    if stripped.upper().startswith(SILENCE):
        rest = stripped[len(SILENCE) :]
    elif stripped.upper().endswith(SILENCE):
        rest = stripped[: -len(SILENCE)]
    else:
        return False
    rest = _without_musing(rest.strip("*_`\"' \n"))
    return len(rest.split()) <= 8 or _is_chatter(rest)


def _without_json(text: str) -> str:
    """The texts in an answer that is a JSON value, fenced or not; an answer that is none as it is."""
    try:
        value = json.loads(_FENCED.sub("", text.strip()))
    except (ValueError, RecursionError):
        return text.strip()
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return "\n".join(str(one) for one in values if one is not None).strip()


def _without_musing(text: str) -> str:
    """Without sentences at the beginning that only announce what the model is about to do."""
    position = 0
    while position < len(text):
        found = _SENTENCE_END.search(text, position)
        end, behind = (len(text), len(text)) if found is None else found.span()
        bare = text[position:end].strip(_MARKS)
        goes_on = behind < len(text)
        if bare and not _MUSING.fullmatch(bare) and not (goes_on and _INTERJECTION.fullmatch(bare)):
            return text[position:].strip()
        position = behind
    return ""


def _is_chatter(text: str) -> bool:
    if len(text) > 600:
        return False
    sentences = [part.strip(_MARKS) for part in _SENTENCE_END.split(text)]
    told = [sentence for sentence in sentences if any(char.isalnum() for char in sentence)]
    return all(_CHATTER.fullmatch(s) or _MUSING.fullmatch(s) or _INTERJECTION.fullmatch(s) for s in told)
