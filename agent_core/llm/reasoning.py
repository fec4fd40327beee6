"""
Removes a model's reasoning from the text of its answer while the answer streams. Pure. Reasoning in the text
is a block between two tags at the beginning of a line; an unclosed one hides the rest, and tags inside a line
or fenced code are talk about tags. Some templates open the block themselves, so that only the closing tag
shows that all before was reasoning: ``leaked`` reports it, and `ReasoningHabit` holds the next answer of the
model back. Control tokens of a wrong template are removed first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_core.llm.control_tokens import ControlTokens

_TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
}
_ENDS = {tag: re.compile(re.escape(tag), re.IGNORECASE) for tag in _TAGS.values()}
_FENCES = ("```", "~~~")
_WATCHED = (*_TAGS, *_ENDS, *_FENCES)
_LONGEST = max(map(len, _WATCHED))
_INDENT = 64
_INDENTED = re.compile(rf"[ \t]{{0,{_INDENT}}}")
_CANDIDATE = re.compile(rf"\n(?=[ \t]{{0,{_INDENT}}}(?:[<\[◁`~]|\Z))")
"""The end of a line after which one of these may stand."""
_OPENS = re.compile("|".join(map(re.escape, _TAGS)), re.IGNORECASE)
_CLOSES = re.compile("|".join(map(re.escape, _TAGS.values())), re.IGNORECASE)
_BLANK = re.compile(r"\s*")


@dataclass(slots=True)
class ReasoningHabit:
    """Remembers if a model's answers usually begin inside a block of reasoning."""

    begins_inside: bool = False


class ReasoningFilter:
    """Filters one answer's pieces; ``hidden`` counts removed characters. ``habit`` is learned here."""

    def __init__(self, habit: ReasoningHabit) -> None:
        self._habit = habit
        self._tokens = ControlTokens()
        self._waiting = ""
        """What cannot be decided yet: the beginning of a line that may become a tag, the end of a thought."""
        self._closing = ""
        """The tag that ends the thought in hand; empty outside of one."""
        self._at_line_start = True
        self._after_thought = False
        self._fenced = False
        self._shown = False
        self._held = habit.begins_inside
        self._out: list[str] = []
        self.hidden = 0
        self.leaked = False

    def feed(self, text: str) -> str:
        """Take a piece and return what can be shown now."""
        before = self._tokens.hidden
        text = self._tokens.feed(text)
        self.hidden += self._tokens.hidden - before
        return self._read(text, final=False)

    def flush(self) -> str:
        """The held-back text that is not reasoning, at the end."""
        self._held = False
        return self._read(self._tokens.flush(), final=True)

    def _read(self, text: str, *, final: bool) -> str:
        data, at = self._waiting + text, 0
        while at < len(data):
            if self._after_thought:
                at = _end_of(_BLANK, data, at)
                self._after_thought = at == len(data)
            elif self._closing:
                at, decided = self._in_thought(data, at, final=final)
                if not decided:
                    break
            elif self._at_line_start:
                next_at = self._at_line(data, at, final=final)
                if next_at is None:
                    break
                at = next_at
            else:
                found = _CANDIDATE.search(data, at)
                end = len(data) if found is None else found.end()
                self._out.append(data[at:end])
                self._at_line_start = found is not None
                at = end
        self._waiting = data[at:]
        if self._held:
            return ""
        given = "".join(self._out)
        self._out.clear()
        self._shown = self._shown or bool(given.strip())
        return given

    def _in_thought(self, data: str, at: int, *, final: bool) -> tuple[int, bool]:
        """Return the end of the reasoning and True; else the length that can be dropped and False."""
        found = _ENDS[self._closing].search(data, at)
        if found is not None:
            self.hidden += found.end() - at
            self._closing, self._after_thought, self._at_line_start = "", True, True
            return found.end(), True
        kept = len(data) if final else max(len(data) - _LONGEST, at)
        self.hidden += kept - at
        return kept, False

    def _at_line(self, data: str, at: int, *, final: bool) -> int | None:
        """Read what a line begins with; where to go on, or None if more is needed to tell."""
        begins = _end_of(_INDENTED, data, at)
        if not final and len(data) - begins < _LONGEST and begins - at < _INDENT:
            word = data[begins:].lower()
            if any(one.startswith(word) and one != word for one in _WATCHED):
                return None
        if not self._fenced and (opening := _OPENS.match(data, begins)):
            self.hidden += len(opening[0])
            self._closing = _TAGS[opening[0].lower()]
            return opening.end()
        if not self._fenced and (closing := _CLOSES.match(data, begins)):
            self._end_unopened()
            return closing.end()
        if data.startswith(_FENCES, begins):
            self._fenced = not self._fenced
        self._at_line_start = False
        return at

    def _end_unopened(self) -> None:
        """All before was a thought that had begun before the answer did."""
        self._habit.begins_inside = True
        self.leaked = self._shown
        self.hidden += sum(map(len, self._out))
        self._out.clear()
        self._held = False
        self._after_thought = True


def _end_of(pattern: re.Pattern[str], data: str, at: int) -> int:
    found = pattern.match(data, at)
    return at if found is None else found.end()
