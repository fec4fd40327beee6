r"""
Parser rules for what models write beyond CommonMark: formulas, spoilers, details and footnotes.

A formula stands in ``\(…\)``, ``\[…\]`` or ``$$…$$`` and becomes ``data-mx-maths`` (Matrix client-server
specification, "Mathematical messages"); a single dollar is a price. A spoiler ``||x||`` has its marks at the
text. A star between letters or digits is no emphasis. Failed searches are not repeated, so that time stays
linear.
"""
# ruff: noqa: FBT001, ARG001 - the parser's own form of a rule

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_MAX_CHARS = 2000
_ENDS = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}
_SPOILER = re.compile(r"\|\|(?!\s)(?P<said>[^\n|]{1,2000})(?<!\s)\|\|(?!\|)")
_FOOTNOTE = re.compile(r"\[\^(?P<name>[\w\-]{1,30})\]")
_STAR = re.compile(r"(?<=[A-Za-z0-9_)\]])\*(?=[A-Za-z0-9_(\[\\])(?!\*)")
_DETAILS = re.compile(
    r"(?P<open><details(?: open)?>)?\s*+(?:<summary>(?P<summary>[^\n]{0,500}?)</summary>)?"
    r"\s*+(?P<close></details>)?"
)
_TAG = re.compile(r"</?[a-z]{1,10}>")


def add_rules(parser: MarkdownIt) -> None:
    """Have the parser read them."""
    for name, rule in (("formula", _formula), ("footnote", _footnote), ("star", _star)):
        parser.inline.ruler.before("escape", name, rule)
    parser.core.ruler.push("spoiler", _spoilers)
    alternatives: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "formula_block", _formula_block, alternatives)
    parser.block.ruler.before("fence", "details", _details, alternatives)
    parser.block.ruler.before("reference", "footnote_text", _footnote_text)
    for kind in ("formula", "formula_block", "spoiler", "footnote", "details"):
        parser.add_render_rule(kind, _rendered)


def _rendered(_self: Any, tokens: Any, index: int, _options: Any, _env: Any) -> str:
    return str(tokens[index].meta["html"])


def _formula(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "\\$" or not (found := _formula_at(state.src, state.pos)):
        return False
    if not silent:
        source = html.escape(found[2:-2].strip())
        token = state.push("formula", "", 0)
        token.content = found
        token.meta = {"html": f'<span data-mx-maths="{source}"><code>{source}</code></span>'}
    state.pos += len(found)
    return True


def _formula_at(text: str, start: int) -> str:
    """Return the formula of a line that begins at ``start``, with its marks; empty if there is none."""
    close = _ENDS.get(text[start : start + 2])
    end = text.find(close, start + 2, start + _MAX_CHARS) if close else -1
    found = text[start : end + 2] if end >= 0 else ""
    inside = found[2:-2]
    loose = close == "$$" and inside != inside.strip()
    return "" if not inside.strip() or "\n" in inside or loose else found


def _spoilers(state: StateCore) -> None:
    """Split texts at spoilers: the parser reads a text up to a mark of its own, and this is none."""
    for block in state.tokens:
        if block.type == "inline" and "||" in block.content:
            block.children = [part for token in block.children or () for part in _parts(token)]


def _parts(token: Token) -> Iterator[Token]:
    if token.type != "text":
        yield token
        return
    done = 0
    for found in _SPOILER.finditer(token.content):
        yield replace(token, content=token.content[done : found.start()])
        rendered = f"<span data-mx-spoiler>{html.escape(found['said'], quote=False)}</span>"
        yield replace(token, type="spoiler", content=found[0], meta={"html": rendered})
        done = found.end()
    yield replace(token, content=token.content[done:])


def _footnote(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != "[" or (found := _FOOTNOTE.match(state.src, state.pos)) is None:
        return False
    if not silent:
        token = state.push("footnote", "", 0)
        token.content, token.meta = found[0], {"html": f"<sup>[{found['name']}]</sup>"}
    state.pos = found.end()
    return True


def _star(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != "*" or _STAR.match(state.src, state.pos) is None:
        return False
    if not silent:
        state.pending += "*"
    state.pos += 1
    return True


def _footnote_text(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse the text of a footnote: a paragraph, and not the address of a link."""
    begin = state.bMarks[start] + state.tShift[start]
    if silent or _FOOTNOTE.match(state.src, begin, state.eMarks[start]) is None:
        return False
    state.push("paragraph_open", "p", 1)
    token = state.push("inline", "", 0)
    token.content = state.src[begin : state.eMarks[start]].strip()
    token.map, token.children = [start, start + 1], []
    state.push("paragraph_close", "p", -1)
    state.line = start + 1
    return True


def _formula_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    lines = [state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].rstrip()]
    close = _ENDS.get(lines[0][:2]) if lines[0][:2] in ("\\[", "$$") else None
    if close is None or state.env.get(close):
        return False
    if len(lines[0]) > 2:
        if _formula_at(lines[0], 0) != lines[0]:
            return False
        if not silent:
            _push_block(state, lines[0], lines[0][2:-2].strip(), start)
        return True
    for number in range(start + 1, min(end, start + 100)):
        lines.append(state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip())
        if lines[-1] == close:
            break
    else:
        state.env[close] = True
        return False
    if not silent:
        _push_block(state, "\n".join(lines), "\n".join(lines[1:-1]), number)
    return True


def _push_block(state: StateBlock, content: str, source: str, last: int) -> None:
    token, shown = state.push("formula_block", "", 0), html.escape(source)
    token.content = content
    token.meta = {"html": f'<div data-mx-maths="{shown}"><pre><code>{shown}</code></pre></div>\n'}
    state.line = last + 1


def _details(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a line of nothing but these tags; one never closed would fold away the rest of the answer."""
    line = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].strip()
    found = _DETAILS.fullmatch(line) if line.startswith("<") else None
    if found is None or state.level:
        return False
    opens, closes = found["open"], found["close"]
    summary = None if found["summary"] is None else html.unescape(_TAG.sub("", found["summary"]))
    never_closed = state.env.get("details") or state.src.find("\n</details>", state.eMarks[start]) < 0
    if opens and not closes and never_closed:
        state.env["details"] = True
        return False
    if not silent:
        token = state.push("details", "", 0)
        rendered = "<details>" if opens else ""
        if summary is not None:
            rendered += f"<summary>{html.escape(summary, quote=False)}</summary>"
        token.content = summary or ""
        token.meta = {"html": f"{rendered}{'</details>' if closes else ''}\n"}
        state.line = start + 1
    return True
