"""
Which texts make which code slow: patterns and text functions of the product, found by reading its source.

Time is CPU time of one thread, so a busy machine changes little. A case is grown fourfold only where it is slow
for its length, and is slow in the end where fourfold the text costs far more than fourfold the time.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pkgutil
import re
import re._constants as sre
import re._parser as sre_parser
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

PACKAGES = ("gateway", "channels", "agent_core")
CALLS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
TELLING = [
    *" \t\n\r<>a0.-*_`[]()|#@:/&;=\"'\\\0,!{+~?xAe$%",
    "\u0301",
    "\u00e9",
    "\u2026",
    "\U0001f600",
]
LIMIT_S = 25.0
"""Of CPU time for all texts of one case."""
SHORT = 2_000
LONG = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """Something that takes a text."""

    name: str
    run: Callable[[str], Any]
    pumps: tuple[str, ...]
    prefixes: tuple[str, ...] = ("",)
    suffixes: tuple[str, ...] = ("", "\0")
    longest: int = LONG

    def texts(self, size: int) -> Iterator[tuple[str, str, str, str]]:
        for pump in self.pumps:
            for prefix in self.prefixes:
                for suffix in self.suffixes:
                    yield prefix, pump, suffix, made(prefix, pump, suffix, size)


def made(prefix: str, pump: str, suffix: str, size: int) -> str:
    return prefix + pump * (size // len(pump)) + suffix


# ── patterns ──


@dataclass(frozen=True, slots=True)
class Unread:
    """A pattern that only a call knows."""

    where: str
    source: str


def modules() -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        root = importlib.import_module(package)
        yield package, root
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not info.name.endswith("__main__"):
                yield info.name, importlib.import_module(info.name)


def patterns(
    sources: Iterable[tuple[str, str, dict[str, Any]]],
) -> tuple[dict[tuple[str, str], re.Pattern[Any]], list[Unread]]:
    """
    Every pattern in the sources (name, text, namespace) by (where it stands, how it is used).

    One that only a function's own names make is `Unread`.
    """
    trees = [(name, ast.parse(text), space) for name, text, space in sources]
    uses: dict[tuple[Any, int], set[str]] = {}
    for _, tree, space in trees:
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in CALLS
                and isinstance(node.value, ast.Name)
                and isinstance(found := space.get(node.value.id), re.Pattern)
            ):
                uses.setdefault((found.pattern, found.flags), set()).add(node.attr)
        for node in ast.walk(tree):
            # From a place of its own on, the same text may be gone through many times: worse than a search.
            if (
                isinstance(node, ast.Call)
                and len(node.args) > 1
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("match", "fullmatch")
                and isinstance(node.func.value, ast.Name)
                and isinstance(found := space.get(node.func.value.id), re.Pattern)
            ):
                uses[(found.pattern, found.flags)].add("search")
    made_of: dict[tuple[str, str], re.Pattern[Any]] = {}
    unread: list[Unread] = []
    for name, tree, space in trees:
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr in CALLS
            ):
                continue
            way = node.func.attr
            try:
                pattern = _evaluated(node.args[0], space)
                flags = next((kw.value for kw in node.keywords if kw.arg == "flags"), None)
                position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(way, 2)
                if flags is None and len(node.args) > position:
                    flags = node.args[position]
                compiled = re.compile(pattern, _evaluated(flags, space) if flags else 0)
            except NameError:
                unread.append(Unread(name, ast.unparse(node.args[0])))
                continue
            ways = {way} if way != "compile" else uses.get((compiled.pattern, compiled.flags), {"search"})
            for each in ways:
                made_of[f"{name}:{node.lineno}", each] = compiled
    return made_of, unread


def product_sources() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, module in modules():
        yield name, Path(module.__file__).read_text(encoding="utf-8"), vars(module)


def _evaluated(node: ast.expr, space: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), dict(space))


_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


def pattern_case(where: str, way: str, pattern: re.Pattern[Any]) -> Case:
    """The texts that could hurt: of every kind of character that the pattern tells apart, and of its own parts."""
    is_bytes = isinstance(pattern.pattern, bytes)
    source = pattern.pattern.decode("latin-1") if is_bytes else pattern.pattern
    tree = sre_parser.parse(source, pattern.flags & ~re.DEBUG if not is_bytes else pattern.flags)
    sequences = list(_sequences(tree))
    atoms = [item for sequence in sequences for item in sequence if item[0] in _ATOMS]
    candidates = [*TELLING, *(chr(code) for item in atoms for code in _codes(*item))]
    if is_bytes:
        candidates = [char for char in candidates if ord(char) < 256]
    kinds: dict[tuple[bool, ...], str] = {}
    for char in candidates:
        # What stands at the edges of lines and words tells characters apart, too.
        edges = (char == "\n", re.match(r"\w", char) is not None)
        kinds.setdefault((*edges, *(_fits(*item, char, pattern.flags) for item in atoms)), char)
    chars = list(kinds.values())
    few = chars[:8]
    parts: list[str] = []
    for sequence in sequences[:30]:
        for end in range(1, len(sequence) + 1):
            for repeats in (1, 0, 2):
                for choice in (0, 1):
                    part = _sample(sequence[:end], repeats, choice, chars, pattern.flags, {})
                    if 0 < len(part) <= 60:
                        parts.append(part)

    def run(text: str) -> None:
        given: Any = text.encode("latin-1", "replace") if is_bytes else text
        if way in ("sub", "subn"):
            pattern.sub(lambda _: given[:0], given)
        elif way == "finditer":
            for _ in pattern.finditer(given):
                pass
        else:
            getattr(pattern, "search" if way == "compile" else way)(given)

    pumps = [*chars[:14], *parts[:50], *(a + b for a in few for b in few if a != b)]
    return Case(
        f"{where} {way} {source[:60]!r}",
        run,
        tuple(dict.fromkeys(pumps))[:110],
        tuple(
            dict.fromkeys(
                [*["", *dict.fromkeys(parts)][:3], *_before_repeats(sequences, chars, pattern.flags)]
            )
        ),
    )


def _before_repeats(sequences: Iterable[list[Any]], chars: list[str], flags: int) -> Iterator[str]:
    """What brings a pattern that is matched from the start of a text to its repetitions, for the first few."""
    places = (
        _sample(sequence[:end], 1, 0, chars, flags, {})
        for sequence in sequences
        for end, (op, value) in enumerate(sequence)
        if end and op in _REPEATS and value[1] is sre.MAXREPEAT
    )
    return islice((place for place in places if 0 < len(place) <= 60), 4)


_ATOMS = (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY)


def _sequences(tree: Any) -> Iterator[list[Any]]:
    yield list(tree)
    for op, value in tree:
        if op in _REPEATS:
            yield from _sequences(value[2])
        elif op is sre.SUBPATTERN:
            yield from _sequences(value[3])
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from _sequences(branch)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _sequences(value[1])
        elif op is sre.ATOMIC_GROUP:
            yield from _sequences(value)


def _codes(op: Any, value: Any) -> Iterator[int]:
    if op in (sre.LITERAL, sre.NOT_LITERAL):
        yield value
    elif op is sre.IN:
        for kind, each in value:
            if kind is sre.LITERAL:
                yield each
            elif kind is sre.RANGE:
                yield each[0]


def _fits(op: Any, value: Any, char: str, flags: int) -> bool:
    same = {char, char.lower(), char.upper()} if flags & re.IGNORECASE else {char}
    if op is sre.ANY:
        return char != "\n" or bool(flags & re.DOTALL)
    if op is sre.LITERAL:
        return chr(value) in same
    if op is sre.NOT_LITERAL:
        return chr(value) not in same
    negated = hit = False
    for kind, each in value:
        if kind is sre.NEGATE:
            negated = True
        elif kind is sre.LITERAL:
            hit |= chr(each) in same
        elif kind is sre.RANGE:
            hit |= any(len(one) == 1 and each[0] <= ord(one) <= each[1] for one in same)
        elif kind is sre.CATEGORY:
            hit |= re.match(_CATEGORIES[each], char) is not None
    return hit != negated


def _sample(
    sequence: Any, repeats: int, choice: int, chars: list[str], flags: int, groups: dict[int, str]
) -> str:
    """A text that the sequence matches, but for what it looks at besides."""
    out = ""
    for op, value in sequence:
        if op is sre.LITERAL:
            out += chr(value)
        elif op in _ATOMS:
            out += next((char for char in chars if _fits(op, value, char, flags)), "a")
        elif op in _REPEATS:
            least, most, inner = value
            times = max(int(least), min(int(most), repeats))
            out += _sample(inner, repeats, choice, chars, flags, groups) * min(times, 30)
        elif op is sre.SUBPATTERN:
            part = _sample(value[3], repeats, choice, chars, flags, groups)
            groups[value[0]] = part
            out += part
        elif op is sre.BRANCH:
            out += _sample(value[1][choice % len(value[1])], repeats, choice, chars, flags, groups)
        elif op is sre.GROUPREF:
            out += groups.get(value, "")
        elif op is sre.ATOMIC_GROUP:
            out += _sample(value, repeats, choice, chars, flags, groups)
    return out


# ── functions ──

PUMPS = tuple(
    dict.fromkeys(
        [
            *TELLING,
            *(char + other for char in TELLING for other in " \na"),
            *(
                "<a ",
                "<!--",
                "<!",
                "<?",
                "](",
                "[a](",
                "![](",
                "[a]: b\n",
                "[a]\n",
                "[[]",
                "> ",
                "- a\n",
                "1. ",
            ),
            *("  \n", "\\\n", "&a", "&#", "`a", "``a`", "*a_", "**a ", "~~a", "|a|\n|-|\n", "| a\n", "a|"),
            *(
                "=?utf-8?q?",
                "=?",
                "?=",
                "a@b.c,",
                "<a@b>",
                "(a",
                '"a',
                "a: b\n",
                "On a wrote:\n",
                ">a\n",
                ">>",
            ),
            *(
                "</a>",
                "</",
                "<b",
                "\n[",
                "[a] ",
                "```\n",
                "a. ",
                "1.",
                "1,",
                "a-",
                "http://",
                "--\n",
                "-- \n",
            ),
            *("\r\n", "\n\n", " \n", "\t\n", "{}", '{"a":', "[1,", "''", '""', "a=", "a;", "%a0", "\\u0301"),
        ]
    )
)


NOT_FOREIGN = {
    "agent_core.tools.files.file_search_child": "a process of its own, with limits of time and memory",
    "gateway.cli": "the owner's own terminal",
    "gateway.cli.setup": "the owner's own answers",
    "gateway.settings": "the owner's own configuration file",
    "gateway.cli.demo": "the owner's own terminal",
    "gateway.operations.control.healthcheck": "a command line",
    "gateway.observability.logs.log_reader": "starts a program",
    "agent_core.children.confined_child": "sets up the process that it is in",
    "agent_core.children.long_running_child": "sets up the process that it is in",
}
BOUNDED = {
    "channels.email.compose.outbound_mail._encoded": 200,  # a subject: MAX_SUBJECT
}
"""What never gets a longer text, by its callers."""


def function_cases(sources: Iterable[tuple[str, Any]]) -> Iterator[Case]:
    """Every function of the modules that needs nothing but one text."""
    for name, module in sources:
        if _is_own(name):
            continue
        for each, function in sorted(vars(module).items()):
            where = f"{name}.{each}"
            if (
                inspect.isfunction(function)
                and function.__module__ == name
                and not inspect.iscoroutinefunction(function)
                and (kind := _wants(function))
            ):
                most = BOUNDED.get(where, LONG)
                yield Case(where, _called(function, kind), PUMPS, suffixes=("\0",), longest=most)


def _wants(function: Any) -> str:
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if len(needed) != 1 or needed[0].kind is needed[0].KEYWORD_ONLY:
        return ""
    kind = str(needed[0].annotation)
    return kind if kind in ("str", "bytes", "list[str]", "Sequence[str]", "Iterable[str]") else ""


def _called(function: Any, kind: str) -> Callable[[str], None]:
    def run(text: str) -> None:
        given: Any = text
        if kind == "bytes":
            given = text.encode()
        elif kind != "str":
            given = text.split("\n")
        try:
            found = function(given)
            if inspect.isgenerator(found) or hasattr(found, "__next__"):
                for _ in found:
                    pass
        except Exception:
            return

    return run


# ── measuring ──


def seconds(run: Callable[[str], Any], text: str) -> float:
    begin = time.thread_time()
    run(text)
    return time.thread_time() - begin


@dataclass(frozen=True, slots=True)
class Slow:
    """Far more than fourfold the time for fourfold the text."""

    name: str
    text: tuple[str, str, str]
    first: float
    then: float

    def __str__(self) -> str:
        prefix, pump, suffix = self.text
        return f"{self.name}: {prefix!r} + {pump!r} * n + {suffix!r}: {self.first:.4f} s, four times as long {self.then:.4f} s"


def growth(case: Case, *, begin: Callable[[str], None] = lambda _: None) -> Slow | None:
    """The first text that the case does not take in linear time. ``begin`` is told what comes."""
    short = min(SHORT, case.longest)
    allowed = short * 4e-7
    worst: list[tuple[float, tuple[str, str, str]]] = []
    for prefix, pump, suffix, text in case.texts(short):
        begin(f"{case.name}\t{prefix!r}\t{pump!r}\t{suffix!r}\t{SHORT}")
        took = seconds(case.run, text)
        worst.append((took, (prefix, pump, suffix)))
        if took <= allowed:
            continue
        took = min(took, *(seconds(case.run, text) for _ in range(2)))
        if took <= allowed or case.longest <= SHORT:
            continue
        slow = _grown(case, (prefix, pump, suffix), took, begin)
        if slow is not None:
            return slow
        allowed = 1.5 * took  # it is what a text of this length costs here
    worst.sort(reverse=True)
    for took, parts in worst[:2]:
        begin("\t".join([case.name, *map(repr, parts), str(case.longest)]))
        long = seconds(case.run, made(*parts, case.longest))
        if long > 20 * max(took, allowed) * case.longest / short:
            return Slow(case.name, parts, took, long)
    return None


def _grown(
    case: Case, parts: tuple[str, str, str], first: float, begin: Callable[[str], None]
) -> Slow | None:
    size = SHORT
    for _ in range(2):
        size *= 4
        begin("\t".join([case.name, *map(repr, parts), str(size)]))
        text = made(*parts, size)
        then = min(seconds(case.run, text) for _ in range(2))
        if then < 7 * first:
            return None
        before, first = first, then
    return Slow(case.name, parts, before, then)


# ── in processes of their own ──


def limited(case: Case, *, limit_s: float, note: Path) -> str:
    """What is slow about the case, found by a child that may take so much CPU time; empty if nothing is."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        # The kernel ends it, also inside of a pattern.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        last = os.open(note, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            found: object = growth(
                case, begin=lambda text: void(os.pwrite(last, (text[:300] + "\n").encode(), 0))
            )
        except BaseException as error:
            found = f"{case.name}: {error!r}"[:1000]
        os.write(writing, (str(found) if found else "-").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    if not said:
        return f"cut after {limit_s} s: {note.read_text(encoding='utf-8').splitlines()[0]}"
    return "" if said == "-" else said


def void(_: object) -> None:
    """Nothing."""


def cases(what: str) -> list[Case]:
    if what == "patterns":
        found, _ = patterns(each for each in product_sources() if not _is_own(each[0]))
        seen = {
            (pattern.pattern, pattern.flags, way): (where, way) for (where, way), pattern in found.items()
        }
        return [pattern_case(where, way, found[where, way]) for where, way in seen.values()]
    if what == "functions":
        return list(function_cases(modules()))
    from tests.linear_entries import ENTRIES

    return [Case(name, run, PUMPS, suffixes=("\0",), longest=most) for name, (run, most) in ENTRIES.items()]


def _is_own(module: str) -> bool:
    return any(module == own or module.startswith(f"{own}.") for own in NOT_FOREIGN)


def main(what: str, shard: str, of: str, folder: str) -> None:
    mine = cases(what)[int(shard) :: int(of)]
    os.chdir(folder)
    slow = [said for case in mine if (said := limited(case, limit_s=LIMIT_S, note=Path(folder, "last")))]
    json.dump({"cases": len(mine), "slow": slow}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
