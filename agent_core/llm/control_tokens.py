"""
Removes control tokens of chat templates from the text of an answer while it streams. Pure. A server whose
template does not fit the model lets them through: `<|channel|>analysis<|message|>…` of the Harmony format
(only its final channel is for people), `<|im_end|>` or `</s>` at the end, and behind that a next speaker whom
the model has invented. Tokens in code are talk about them and stay.
"""

from __future__ import annotations

import re

_STARTS = ("start", "im_start", "start_header_id")
_INSIDE = ("channel", "message", "constrain", "end_header_id")
_ENDS = ("end", "return", "call", "im_end", "eot_id", "eom_id", "endoftext", "end_of_text")
_TOKEN = re.compile(rf"<\|({'|'.join((*_STARTS, *_INSIDE, *_ENDS))})\|>|</s>")
_PART = re.compile(r"(?:<(?:\|\w{0,15}\|?)?|</?s?|`{1,64})\Z")
"""What may become a token, or a fence, with the next piece."""
_CUT_TOKEN = re.compile(r"<\|\w")
_SPEAKERS = ("assistant", "user", "human", "system", "tool")
_SPEAKER = re.compile(rf"({'|'.join(_SPEAKERS)})\s*(:|\n|\Z)", re.IGNORECASE)
_CODE = re.compile(r"`+|\n")
_MAX_HEADER = 100


class ControlTokens:
    """Filters one answer: takes pieces of text, returns what is left. ``hidden`` counts what is not."""

    def __init__(self) -> None:
        self._waiting = ""
        self._state = "text"
        """Where the next text belongs: ``text``, ``header`` of a message, ``after`` the end of one."""
        self._opener = self._header = self._ended_by = self._after = ""
        self._silent = self._over = self._said = self._fenced = self._quoted = self._struck = False
        self._out: list[str] = []
        self.hidden = 0

    def feed(self, text: str) -> str:
        """Take a piece and return what can be shown now."""
        data, at = self._waiting + text, 0
        self._waiting = ""
        while not self._over:
            token = _TOKEN.search(data, at)
            part = None if token is not None else _PART.search(data, at)
            end = token.start() if token is not None else len(data) if part is None else part.start()
            self._add(data[at:end])
            if token is None:
                self._waiting = "" if self._over else data[end:]
                break
            at = token.end()
            if not self._over:
                self._take(token[0], token[1])
        given = "".join(self._out)
        self._out.clear()
        self.hidden += len(text) - len(given)
        return given

    def flush(self) -> str:
        """The text that was held back, at the end."""
        waiting, self._waiting = self._waiting, ""
        if not self._over and not _CUT_TOKEN.match(waiting):
            self._add(waiting)
        if self._state == "after" and self._after.strip() and not self._over:
            self._go_on(is_speaker=bool(_SPEAKER.match(self._after.strip())))
        given = "".join(self._out)
        self._out.clear()
        return given

    def _add(self, text: str) -> None:
        """Take text between tokens."""
        if self._state == "after":
            self._after += text
            said = self._after.lstrip()
            if not said:
                self._after = self._after[-_MAX_HEADER:]
            elif not any(word.startswith(said.lower().rstrip()) for word in _SPEAKERS):
                self._go_on(is_speaker=bool(_SPEAKER.match(said)))
        elif self._state == "header":
            head, line_end, body = text.partition("\n") if self._opener == "im_start" else (text, "", "")
            self._header = (self._header + head)[:_MAX_HEADER]
            if line_end:
                self._begin()
                self._add(body)
        elif text and not self._silent and not self._over:
            self._show(text)

    def _show(self, text: str) -> None:
        for mark in _CODE.findall(text):
            if mark == "\n":
                self._quoted = False
            elif len(mark) >= 3:
                self._fenced = not self._fenced
            else:
                self._quoted = not self._quoted
        self._said = self._said or bool(text.strip())
        self._struck = self._struck or "<s>" in text
        self._out.append(text)

    def _go_on(self, *, is_speaker: bool) -> None:
        """Text follows the end of a message: somebody else's, or what is no end after all."""
        text, self._after, self._state = self._after, "", "text"
        self._over = self._over or is_speaker
        if not self._over:
            self._show(self._ended_by + text if self._ended_by == "</s>" else text)

    def _take(self, token: str, name: str | None) -> None:
        """Take a token; a name of None is that of `</s>`."""
        shown = self._state == "text" and not self._silent
        if shown and (self._fenced or self._quoted or (name is None and self._struck)):
            self._show(token)
            self._struck = False
        elif name is None or name in _ENDS:
            self._state, self._silent, self._ended_by = "after", False, token
        elif name in _STARTS:
            self._over = self._said
            self._state, self._opener, self._header, self._after = "header", name, "", ""
        elif name == "channel":
            if self._state == "header":
                self._begin()
            self._state, self._opener, self._header, self._after = "header", name, "", ""
        elif name != "constrain" and self._state == "header":
            self._begin()

    def _begin(self) -> None:
        """Begin a message whose header is complete; nobody but the assistant speaks here."""
        said = self._header.strip().lower()
        if self._opener == "channel":
            self._silent = not said.startswith("final")
        else:
            self._silent = False
            self._over = self._over or (bool(said) and not said.startswith("assistant"))
        self._state = "text"
