"""
No statement of the stores has a form that one of the engines does not know, or that means something else there.

Every text of `gateway/store/sql` is looked through, as it stands in the source; what a formatted text puts in
is a name of its own.
"""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gateway.store import sql
from gateway.store.sql.tables import COLUMNS, TABLES
from tests.rows import rows

RETIRED = {
    "JSON is read in Python: a payload may hold NUL, which jsonb refuses": r"\bjson_\w+|->",
    "ON CONFLICT says it in both": r"\bINSERT OR\b|\bREPLACE INTO\b|\bUPDATE OR\b",
    "an insert names its columns": r"\bINSERT INTO \w+ (VALUES|SELECT)\b",
    "a select names its columns": r"\bSELECT (\w+\.)?\*|COUNT\(DISTINCT \*\)",
    "IS NOT is for NULL only": r"\bIS (NOT )?(?!NULL\b|NOT\b)\S",
    "a unary plus is no operator on texts": r"(?<=[\s(])\+\s*[a-z]\w*(\.\w+)?\s+(=|<|>|IN\b|NOT\b)",
    "CAST truncates in one and rounds in the other": r"\bCAST\(|::",
    "MAX and MIN of several values are aggregates in one": r"\b(MAX|MIN)\((?:[^(),]|\([^()]*\))*,",
    "a condition is a truth value": r"\b(WHERE|AND|OR) \(?[01]\b(?!\s*[=<>])",
    "only one has rows without a key of ours": r"\browid\b|\boid\b|\bctid\b",
    "LIKE takes no notice of case in one": r"\bI?LIKE\b|\bGLOB\b|\bCOLLATE\b",
    "functions of one engine": r"\b(instr|ifnull|iif|printf|strftime|datetime|julianday|total|group_concat"
    r"|unixepoch|typeof|hex|randomblob|random|now|position|greatest|least|last_insert_rowid|changes)\(",
    "the engine's own matters": r"\bPRAGMA\b|\bsqlite_\w+|\bVACUUM\b|\bpg_\w+|\bBEGIN\b|\bCOMMIT\b",
    "a mark alone has no type": r"\? IS (NOT )?NULL|:\w+ IS (NOT )?NULL",
    "beside excluded a column of its own needs its table": r"= \(?(\w+) [-+*] excluded\.|COALESCE\(\w+, [^()]+\) [-+*] excluded\.",
    "a query to select from has a name": r"\bFROM \((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?! AS \w)",
    "bare columns beside an aggregate": r"\bSELECT [^()]*\w+, (MIN|MAX)\(\w+\)(?!.*GROUP BY)|\bSELECT [^()]*(MIN|MAX)\(\w+\), \w+",
}
_STATEMENT = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE|FROM|ON CONFLICT|VALUES|AND|OR)\b")


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text that may be part of a statement; docstrings are none."""
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        text = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        if text is not None and _STATEMENT.search(text):
            yield text


def retired(text: str) -> list[str]:
    """What is wrong with a text."""
    return [why for why, form in RETIRED.items() if re.search(form, text)]


def test_every_statement_is_in_the_language_of_both():
    found, looked_at = {}, 0
    for path in sorted(Path(sql.__file__).parent.glob("*.py")):
        for text in texts(ast.parse(path.read_text())):
            looked_at += 1
            if wrong := retired(text):
                found[f"{path.name}: {text}"] = wrong
    assert not found
    assert looked_at > 150


def test_every_column_is_moved_and_found_of_a_person():
    """A column that is added to a table is moved, exported and erased with its row."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES)
        for table, columns in COLUMNS.items():
            there = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            assert set(columns) == there, table
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert {*COLUMNS, "meta", "leases"} == {name for name in tables if not name.startswith("sqlite_")}


@rows(
    "text",
    [
        "SELECT json_extract(payload, '$.kind') FROM outbox",
        "SELECT payload ->> 'kind' FROM outbox",
        "INSERT OR IGNORE INTO seen (digest) VALUES (?)",
        "INSERT INTO state VALUES (?, ?)",
        "SELECT * FROM usage",
        "SELECT 1 FROM outbox WHERE error IS NOT 'left'",
        "SELECT 1 FROM inbox WHERE (+state = 'ready')",
        "SELECT 1 FROM inbox WHERE a AND +outbox.state NOT IN ('sent')",
        "SELECT CAST(at / 86400 AS INTEGER) FROM inbox",
        "UPDATE jobs SET last_at = MAX(COALESCE(last_at, 0), ?)",
        "SELECT id FROM jobs WHERE 1 ORDER BY id",
        "UPDATE turn_steps SET request = ? WHERE rowid = ?",
        "DELETE FROM state WHERE topic LIKE 'question:%'",
        "SELECT 1 FROM inbox WHERE instr(payload, ?)",
        "SELECT 1 FROM receipts WHERE (? IS NULL OR session = ?)",
        " ON CONFLICT (day) DO UPDATE SET calls = calls + excluded.calls",
        " ON CONFLICT (day) DO UPDATE SET cost_usd = COALESCE(cost_usd, 0) + excluded.cost_usd",
        "SELECT COUNT(*) FROM (SELECT id FROM (SELECT id FROM inbox) AS a)",
        "SELECT session, MIN(id), next_at FROM inbox GROUP BY session",
        "PRAGMA secure_delete = ON WHERE",
    ],
)  # fmt: skip
def test_a_retired_form_is_noticed(text):
    """The negative control: each of these was in use."""
    [wrong, *_] = retired(next(texts(ast.parse(f"x = {text!r}"))) if _STATEMENT.search(text) else text)
    assert wrong


@rows(
    "text",
    [
        "SELECT MIN(COALESCE(next_at, 0)) FROM outbox WHERE error IS NOT NULL AND id IN (1, 2)",
        "UPDATE inbox SET attempts = attempts + ? WHERE id = ? AND 0 < id",
        " DO UPDATE SET calls = usage.calls + excluded.calls WHERE once.value <> excluded.value",
        "SELECT COUNT(DISTINCT session) FROM (SELECT id FROM inbox WHERE id IN (SELECT 1)) AS waiting",
    ],
)
def test_what_both_know_is_let_through(text):
    assert retired(text) == []
