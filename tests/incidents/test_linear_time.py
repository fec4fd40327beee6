"""
One text of a stranger, or of a model, must not keep the daemon busy for minutes: a pattern of the standard library
cannot be interrupted and holds everything else up.

Every pattern and every text function of the product is found by reading its source, so a new one is held to this by
itself. Each is fed with thousands of hostile texts in a process of its own, which has a limit of CPU time; what
runs into the limit is named with the text that did it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import linear

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHARDS = 4

KNOWN_UNREAD = {
    # Made of escaped literals: no repetition in them.
    ("gateway.operations.backup.backup_settings", "pattern"): "the owner's secrets, escaped",
    ("gateway.operations.privacy.person_erasure", "b'|'.join(wanted)"): "addresses, escaped",
    ("gateway.observability.redaction", "'|'.join(patterns)"): "the owner's secrets, escaped",
    ("gateway.settings.effective", "alone"): "a secret, escaped",
    ("channels.email.receive.mail_intake", "re.escape(secret)"): "a secret, escaped",
    ("channels.matrix.events.inbound_events", "alone"): "the bot's name, escaped",
    ("agent_core.llm.reasoning", "re.escape(tag)"): "a tag, escaped",
    ("agent_core.llm.model_client", r"f'\\b{re.escape(_folded(each))}\\b'"): "a parameter's name, escaped",
    # A model's own expressions, in a process of its own with limits of time and memory.
    ("agent_core.tools.files.file_search_child", "asked['pattern']"): "what is searched for",
    ("agent_core.tools.files.file_search_child", "found"): "a glob",
}
EXAMPLES = {
    ("channels.email.imap.imap_syntax", r"b'\\[' + name.encode('ascii') + b'(?: ([^\\]]*))?\\]'"): (
        rb"\[UIDVALIDITY(?: ([^\]]*))?\]"
    ),
    ("channels.split", "f'^ {{0,3}}{re.escape(marker[0])}{{{len(marker)},}}\\\\s*$'"): r"^ {0,3}`{3,}\s*$",
    ("channels.matrix.events.outbound_events", r"f'(?<![\\w.@/\\-])(?:{ids})(?![\\w\\-]|[.:]\\w)'"): (
        r"(?<![\w.@/\-])(?:@ann:hs\.test|@bob:hs\.test)(?![\w\-]|[.:]\w)"
    ),
    ("agent_core.llm.model_client", r"f'\\b{re.escape(tool.name)}\\b'"): r"\bread_file\b",
    ("agent_core.html_to_text", "f'</{name}\\\\b'"): r"</script\b",
    ("agent_core.prompt", "f'<(\\\\s*/\\\\s*{re.escape(tag)})'"): r"<(\s*/\s*mail)",
    ("agent_core.prompt", "f'\\\\n</{tag}>'"): r"\n</quoted>",
}


@pytest.fixture(scope="module")
def collected():
    return linear.patterns(linear.product_sources())


def checked(what: str, shard: int, tmp_path: Path, of: int = SHARDS) -> list[str]:
    """What a process of its own finds slow."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.linear", what, str(shard), str(of), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["cases"] > 0
    return report["slow"]


def test_no_pattern_is_overlooked(collected):
    """One that only its function can make needs a place in one of the tables here."""
    found, unread = collected
    assert len(found) > 150
    assert {(each.where, each.source) for each in unread} <= {*KNOWN_UNREAD, *EXAMPLES}


@pytest.mark.parametrize("source", EXAMPLES.values(), ids=str)
def test_patterns_made_in_functions(source):
    assert linear.growth(linear.pattern_case("example", "search", re.compile(source, re.IGNORECASE))) is None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_pattern_takes_linear_time(shard, tmp_path):
    assert checked("patterns", shard, tmp_path) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_function_of_a_text_takes_linear_time(shard, tmp_path):
    assert checked("functions", shard, tmp_path) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_way_of_a_text_takes_linear_time(shard, tmp_path):
    """Composing, reading, prompts, search, commands, key facts, redaction: what takes more than a text."""
    assert checked("entries", shard, tmp_path) == []


@pytest.mark.parametrize(
    ("source", "way"),
    [
        (r"\s+$", "search"),
        (r"[ \t]+(?=\n)", "sub"),
        (r"^(\s*)\[", "sub"),
        (r"<(?=\s*/?\s*(?:mail|quoted)\b)", "sub"),
        (r"<(quoted|forwarded)>\n(.*?)\n</\1>", "sub"),
        (r"(a+)+b", "match"),
        (r"\w+@\w+\.\w+", "search"),
        (r"<!--.*?-->", "finditer"),
        (rb"\s*:\s*x", "search"),
        (r"(?P<name>[!#a-z0-9-]{1,100}):[ \t]*(?P<value>[\x20-\x7e\t]*)", "fullmatch"),
    ],
)
def test_the_check_finds_what_is_slow(source, way, tmp_path):
    """The control: patterns that were here, and some that everybody writes."""
    compiled = re.compile(source, re.MULTILINE | re.DOTALL)
    found = linear.limited(linear.pattern_case("control", way, compiled), limit_s=3, note=tmp_path / "last")
    assert "control" in found


@pytest.mark.parametrize("source", [r"[ \t]+", r"\s*+:", r"^[^\S\n]*\[", r"[^@\s]{1,64}@", r"(?:a|b)*c\Z"])
def test_the_check_passes_what_is_quick(source):
    assert linear.growth(linear.pattern_case("control", "match", re.compile(source, re.MULTILINE))) is None


def test_the_collector_reads_new_code():
    """A pattern is found where it is compiled, with the way it is used; so is one in the middle of a function."""
    text = 'import re\n_A = re.compile(r"a+$")\ndef f(x):\n    _A.sub("", x)\n    return re.search(r"b+$", x, re.M)\n'
    space = {"re": re, "_A": re.compile(r"a+$")}
    found, unread = linear.patterns([("new", text, space)])
    assert {(way, each.pattern) for (_, way), each in found.items()} == {("sub", "a+$"), ("search", "b+$")}
    assert unread == []
    _, unread = linear.patterns([("new", "import re\ndef f(x, y):\n    return re.search(x + y, x)\n", space)])
    assert [each.source for each in unread] == ["x + y"]
