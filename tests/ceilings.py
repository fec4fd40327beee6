"""
What a house this size can grow in without anybody deciding it: long functions, wide constructors, names that only
their author can finish. `measure` finds each place; `tests/unit/test_ceilings.py` holds the number of places.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("gateway", "channels", "agent_core", "squidbot_api")
LONG_FUNCTION, WIDE_CONSTRUCTOR, FULL_FOLDER = 60, 8, 25

_CLAUSE = re.compile(
    r"(?:Whether|What|Who|Whom|Whose|Which|Where|When|Why|How|Until when|From where|As whom|So long|So many|"
    r"Of what|By what|In which|Told|Not any more|Of)\b"
)
"""A docstring that begins with one of these begins a clause and not a sentence."""
_PRIVATE_WORDS = frozenset(
    "told tell theirs hers his ours mine anew heard hears hear beside hurried shed robbed riddle wish wished"
    " everything somebody nobody anybody whoever whatever".split()
)
_PIECES = frozenset(
    "of one on others everybody look look_again look_at look_on settled left go_on let_go lets_in take_in hold holds"
    " at_most at_end back_to how_ended comes_first no_more works went_out elsewhere whole cleaned offered".split()
)
_PARTICIPLE = re.compile(
    r"(?:\w+_)?(?:\w+ed|told|kept|held|heard|left|made|said|seen|sent|shown|spent|written|undone|known|given|taken|"
    r"found|lost|put|gone|begun|asked|met)(?:_(?:in|by|on|to|for|of|from|with|back|again))?$"
)
_PIECE_STARTS = (
    "until_",
    "beside_",
    "whose_",
    "what_",
    "who_",
    "where_",
    "how_",
    "when_",
    "of_",
    "by_",
    "at_",
)
_PIECE_ENDS = ("_besides", "_elsewhere", "_again", "_beside", "_at_home", "_left", "_back")
_QUESTIONS = (
    "is_",
    "has_",
    "was_",
    "can_",
    "may_",
    "must_",
    "should_",
    "needs_",
    "on_",
    "handle_",
    "mark_",
    "connection_",
)
_NOUNS = re.compile(r"(?:^|_)(?:feed|need|seed|speed|embed|bed|red|read|known_\w+s|unread)$")
_CONTEXT_KEY = re.compile(
    r"context(?:\.get\(|\.pop\(|\[)\s*(?:\"([a-z_ ]+)\"|([A-Z_]{3,}))|(?:\"([a-z_]+)\"|([A-Z_]{3,})) (?:not )?in [a-z_.]*context\b"
)
_CHANNEL_WORD = re.compile(
    r"\b(?:Matrix|Email)Config\b|[\"'](?:matrix|email)[\"']|channels\.(?:matrix|email)\b"
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure(root: Path) -> dict[str, list[str]]:
    """Return, for each kind of thing that has a ceiling, the places below ``root`` where it is."""
    found: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, list[str]] = defaultdict(list)
    keys: set[str] = set()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            here, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            for kind, node, name in _findings(tree):
                found[kind].append(f"{here}:{node.lineno} {name}")
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].append(f"{here}:{node.lineno}")
            may_match = _CONTEXT_KEY.search(text) or _CHANNEL_WORD.search(text)
            for number, line in enumerate(_code_lines(text) if may_match else (), 1):
                keys.update(next(filter(None, match.groups())) for match in _CONTEXT_KEY.finditer(line))
                if package == "gateway" and _CHANNEL_WORD.search(line):
                    found["lines of gateway that name a channel"].append(f"{here}:{number}")
        for folder in sorted({path.parent for path in (root / package).rglob("*.py")}):
            if (count := len(list(folder.glob("*.py")))) > FULL_FOLDER:
                found["full folders"].append(f"{folder.relative_to(root)} {count}")
    found["class names used twice"] = [
        f"{name}: {', '.join(where)}" for name, where in classes.items() if len(where) > 1
    ]
    found["untyped keys of a message's context"] = sorted(keys)
    return found


def is_piece_of_a_sentence(name: str) -> bool:
    """Return True for a function's name that is neither a verb, nor a noun, nor a question."""
    if name.startswith(_QUESTIONS) or _NOUNS.search(name):
        return False
    is_piece = name in _PIECES or name.startswith(_PIECE_STARTS) or name.endswith(_PIECE_ENDS)
    return is_piece or _PARTICIPLE.match(name) is not None


def _findings(tree: ast.Module) -> Iterator[tuple[str, ast.ClassDef | _Function, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | _Function):
            continue
        if _CLAUSE.match((ast.get_docstring(node) or "").strip()):
            yield "docstrings that begin with a clause", node, node.name
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", node.name)}
        if words & _PRIVATE_WORDS:
            yield "private words in names", node, node.name
        if isinstance(node, ast.ClassDef):
            yield from _wide_constructors(node)
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > LONG_FUNCTION:
            yield "long functions", node, f"{node.name} {length}"
        if not node.name.startswith("_") and is_piece_of_a_sentence(node.name):
            yield "names that are pieces of a sentence", node, node.name


def _wide_constructors(node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef, str]]:
    decorators = "".join(map(ast.unparse, node.decorator_list))
    methods = [each for each in node.body if isinstance(each, _Function)]
    count = 0
    if (
        "dataclass" in decorators and "frozen=True" not in decorators and len(methods) > 2
    ):  # works, is no record
        count = sum(isinstance(each, ast.AnnAssign) for each in node.body)
    for each in methods:
        if each.name == "__init__":
            arguments = each.args
            count = len([*arguments.posonlyargs, *arguments.args][1:] + arguments.kwonlyargs)
    if count > WIDE_CONSTRUCTOR:
        yield "wide constructors", node, f"{node.name} {count}"


def _code_lines(text: str) -> list[str]:
    """Return the lines of a file without comments and docstrings."""
    lines = text.splitlines()
    previous = tokenize.NEWLINE
    starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and previous in starts):
            for number in range(token.start[0] - 1, token.end[0]):
                lines[number] = lines[number][: token.start[1]] if number == token.start[0] - 1 else ""
        previous = token.type
    return lines
