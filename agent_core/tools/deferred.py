"""
Deferred tools: a model learns their definitions only when it searches for them. Pure. Requests contain a few
tools; ``find_tools`` loads the best matches among the run's, whose definitions follow the others in order of
discovery, so that provider caches stay valid. What was found is journaled (`ToolResult.found`,
`Message.found`), so a restarted and the next turns have it too. A definition counts as its author's words in
the origins of the answer.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from unicodedata import normalize

from agent_core.models import ToolCall, ToolDefinition, ToolResult, tool_parameters
from agent_core.provenance import Origins, join_origins
from agent_core.text import one_line

FIND_TOOLS = "find_tools"
KEPT = 20
"""The most found tools that stay usable in a conversation, the newest."""
_NAMED_AT_ONCE = 12
_FAMILIES = 40
_SEARCHED_CHARS = 1000
_SCHEMA_CHARS = 4000
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Letters and marks of scripts that put no blanks between words: Thai, Chinese, Japanese and others."""
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_PAIRED = re.compile(rf"[{_UNSPACED}]+")
_SMALL_WORDS = frozenset(
    ["a", "an", "and", "for", "from", "in", "into", "is", "it", "my", "of", "on", "or", "that", "the", "to"]
)
_PREFIX = re.compile(r"\A(?:functions|tools|mcp|default_api)(?:__|[.:/])", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_PARAMETERS = tool_parameters("query", query="string")


class DeferredTools:
    """The deferred tools of one run, by name, and which are loaded; ``elsewhere`` as for `ToolRunner`."""

    def __init__(self, definitions: Mapping[str, ToolDefinition], *, elsewhere: str = "") -> None:
        self._definitions = definitions
        self._elsewhere = elsewhere
        self._index: dict[str, tuple[Counter[str], set[str]]] = {}
        self.found: tuple[str, ...] = ()
        """What is loaded, the oldest first."""

    def finder(self) -> ToolDefinition | None:
        """The definition of ``find_tools``; None if there is nothing to find."""
        if not self._definitions:
            return None
        families = Counter(map(_family, self._definitions))
        told = [name if count == 1 else f"{name} ({count})" for name, count in families.items()]
        more = f" and {len(told) - _FAMILIES} more" if len(told) > _FAMILIES else ""
        listed = ", ".join(told[:_FAMILIES]) + more
        text = f"Load more tools by purpose: {listed}."
        return ToolDefinition(name=FIND_TOOLS, description=text, parameters=dict(_PARAMETERS))

    def loaded_definitions(self) -> list[ToolDefinition]:
        """The loaded definitions, always in the same order."""
        return [self._definitions[name] for name in self.found if name in self._definitions]

    def origins_of(self, names: Iterable[str]) -> Origins:
        """Return the origins of the definitions of these tools."""
        return join_origins(*(self._definitions[name].origins for name in names if name in self._definitions))

    def load(self, names: Iterable[str]) -> None:
        """Load these tools; if there are too many, unload the oldest."""
        self.found = tuple(dict.fromkeys((*self.found, *names)))[-KEPT:]

    def answers(self, call: ToolCall) -> bool:
        """Return True if this class answers the call: a search for tools, or a tool that is not loaded."""
        if call.name == FIND_TOOLS:
            return bool(self._definitions)
        return call.name in self._definitions and call.name not in self.found

    def answer(self, call: ToolCall) -> ToolResult:
        """The answer to such a call. Nothing is loaded by it yet: see `load` and `ToolResult.found`."""
        if call.name == FIND_TOOLS:
            return self._find(call)
        definition = self._definitions[call.name]
        schema = json.dumps(definition.parameters, ensure_ascii=False, separators=(",", ":"))
        text = (
            f"{call.name} was not loaded, so nothing was done. It is loaded now: call it again.\n"
            f"{one_line(definition.description, _SEARCHED_CHARS)}\n"
            f"Parameters: {one_line(schema, _SCHEMA_CHARS)}"
        )
        return ToolResult(
            content=text, is_error=True, tool_call_id=call.id, found=(call.name,), origins=definition.origins
        )

    def _find(self, call: ToolCall) -> ToolResult:
        query = call.arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            text = "Give words for what you want to do as query."
            return ToolResult(content=text, is_error=True, tool_call_id=call.id)
        ranked = self._ranked(query)
        if not ranked:
            finder = self.finder()
            told = ["No tool here fits these words; try others.", self._elsewhere]
            text = " ".join(filter(None, [*told, finder.description if finder else ""]))
            return ToolResult(content=text, tool_call_id=call.id)
        best, name = ranked[0]
        servers: list[str] = []
        if not self._definitions[name].origins:
            # The program's own tool fits best: no words of servers are shown beside it, only their names.
            others = [name for _, name in ranked if self._definitions[name].origins]
            servers = list(dict.fromkeys(map(_family, others)))[:_NAMED_AT_ONCE]
            ranked = [each for each in ranked if each[1] not in others]
        load = [name for score, name in ranked[:4] if score * 2 >= best]
        named = [name for _, name in ranked[:_NAMED_AT_ONCE] if name not in load]
        parts = ["You can call these now:", *map(self._line, load)]
        if named:
            parts += ["A call of one of these loads it:", *map(self._line, named)]
        if len(ranked) > _NAMED_AT_ONCE:
            parts.append(f"{len(ranked) - _NAMED_AT_ONCE} more fit less well.")
        if servers:
            parts.append(f"To see what servers have for this, search for their names: {', '.join(servers)}.")
        return ToolResult(
            content="\n".join(parts),
            tool_call_id=call.id,
            found=tuple(load),
            origins=self.origins_of([*load, *named]),
        )

    def _line(self, name: str) -> str:
        sentence = _SENTENCE_END.split(self._definitions[name].description.strip(), maxsplit=1)[0]
        return f"- {name}: {one_line(sentence, 120)}"

    def _ranked(self, query: str) -> list[tuple[float, str]]:
        """The tools that have a word of the query, the best first: rare words count more, names most."""
        if not self._index:
            self._index = {
                name: (Counter(_words(each.name)), set(_words(each.description[:_SEARCHED_CHARS])))
                for name, each in self._definitions.items()
            }
        wanted = _words(query)[:20]
        spread = {
            word: sum(word in said or word in name for name, said in self._index.values()) for word in wanted
        }
        exact = {word.casefold() for word in query.split()}
        scored = []
        for name, (in_name, said) in self._index.items():
            score = sum(
                math.log(1 + len(self._index) / spread[word]) * (4 if word in in_name else 1)
                for word in set(wanted)
                if word in in_name or word in said
            )
            if name.casefold() in exact:
                score += 1000
            if score:
                # Of equal ones the shorter name fits better; the name itself keeps the order the same.
                scored.append((-score, sum(in_name.values()), name))
        return [(-score, name) for score, _, name in sorted(scored)]


def name_of_tool(said: str, names: Iterable[str]) -> str:
    """Return the tool a model means despite case, separators or prefixes; ``said`` if ambiguous."""
    known = list(names)
    if said in known:
        return said
    wanted = {_bare(said), _bare(_PREFIX.sub("", said, count=1))}
    found = [name for name in known if _bare(name) in wanted]
    found = found or [name for name in known if _bare(name.rpartition("__")[2]) in wanted]
    return found[0] if len(found) == 1 else said


def _bare(name: str) -> str:
    return _SEPARATORS.sub("", name).casefold()


def _family(name: str) -> str:
    """The server that a tool belongs to, or the tool itself."""
    server, mark, _ = name.partition("__")
    return server if mark and server else name


def _words(text: str) -> Sequence[str]:
    """Return the stems of a text's words; in scripts without blanks, each pair of characters."""
    words: list[str] = []
    for word in _WORD.findall(_HUMP.sub(" ", normalize("NFKC", text)).casefold()):
        if _PAIRED.match(word):
            words += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        elif word not in _SMALL_WORDS:
            words.append(_stem(word))
    return words


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "es", "ed", "s", "e", "y"):
        if len(word) - len(ending) >= 3 and word.endswith(ending) and not word.endswith("ss"):
            return word[: -len(ending)]
    return word
