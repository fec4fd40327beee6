"""Every command, setting, configuration and link that the manual shows is one that there is."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gateway.cli.commands import app
from gateway.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("**/*.md")])
TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which also names what is gone
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(text: str, *kinds: str) -> Iterator[str]:
    for indent, kind, block in _BLOCK.findall(text):
        if kind in kinds:
            yield "\n".join(line.removeprefix(indent) for line in block.splitlines())


def commands(text: str) -> Iterator[str]:
    """The command lines of squidbot in a page, without what is typed before them."""
    shown = [line for block in blocks(text, "", "sh", "bash", "console") for line in block.splitlines()]
    shown += _INLINE.findall(_BLOCK.sub("", text))
    for line in shown:
        found = re.match(r"(?:\$ |sudo |docker compose exec squidbot )*squidbot ([a-z-].*)", line.strip())
        if found:
            yield found[1].partition("  #")[0].partition(" # ")[0].strip()


def wrong_command(line: str) -> str:
    """What is wrong with a command line; "" if nothing is."""
    try:
        words = shlex.split(line.replace("\\|", "|").replace("…", ""))
    except ValueError:
        words = line.split()
    if words[0].startswith("-") or not words[0].islower():
        return ""
    at, path = app, list[str]()
    while words and re.fullmatch(r"[a-z-]+(?:\|[a-z-]+)*", words[0]):
        names = words[0].split("|")
        known = [name for name in names if name in set(at)]
        if not known and path and at.default_command is not None:
            break  # an argument
        if missing := [name for name in names if name not in known]:
            return f"there is no command {' '.join([*path, missing[0]])}"
        at, path, words = at[known[0]], [*path, words[0]], words[1:]
    if at.default_command is None:
        return "" if not words else f"{' '.join(path)} takes no {words[0]}"
    options = {name for argument in at.assemble_argument_collection() for name in argument.names}
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = [flag for flag in flags if flag not in options | {"--help", "--version"}]
    return f"{' '.join(path)} has no {unknown[0]}" if unknown else ""


def test_each_command_is_one():
    wrong = {
        (page, line): said
        for page in TODAY
        for line in commands(page.read_text())
        if (said := wrong_command(line))
    }
    assert wrong == {}


def test_a_wrong_command_is_noticed():
    """The negative control."""
    assert wrong_command("inbox list --held") == ""
    assert wrong_command("memory list|show|history") == ""
    assert wrong_command("inbox listen") == "there is no command inbox listen"
    assert wrong_command("memory list|shew") == "there is no command memory shew"
    assert wrong_command("cron add --evry 2h TEXT") == "cron add has no --evry"
    assert wrong_command("sing") == "there is no command sing"


class PlainLoader(yaml.SafeLoader):
    """Reads the tags of other programs as plain texts."""


PlainLoader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_scalar(node))


def settings_problem(block: str) -> str:
    """What the settings do not take of a piece of configuration; "" if nothing."""
    data = yaml.safe_load(block)
    others = set(
        (data.get("plugins") or {}).get("enabled") or ()
    )  # what is theirs, other tests build and run
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        found = [
            one
            for one in error.errors()
            if one["type"] in ("extra_forbidden", "literal_error") and not others & set(one["loc"])
        ]
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)
    return ""


def test_each_configuration_is_one():
    shown = [block for page in PAGES for block in blocks(page.read_text(), "yaml")]
    found = [block for block in shown if re.match(r"\w+:", block)]
    ours = [
        block for block in found if set(yaml.load(block, PlainLoader) or {}) <= set(Settings.model_fields)
    ]
    wrong = {block: said for block in ours if (said := settings_problem(block))}
    assert wrong == {}


def missing_setting(name: str) -> str:
    """The first part of a dotted setting that there is not; "" if all are."""
    schema = _schema()
    at: list[Mapping[str, Any]] = [schema]
    for part in name.split("."):
        below = [one for each in at for one in _below(each, part, schema["$defs"])]
        if not below:
            return part
        at = below
    return ""


@functools.cache
def _schema() -> dict[str, Any]:
    return Settings.model_json_schema()


def _below(schema: Mapping[str, Any], part: str, defs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What may stand under a key: names of one's own are in capitals, or fit where any key does."""
    if "$ref" in schema:
        yield from _below(defs[schema["$ref"].rpartition("/")[2]], part, defs)
    for one in (one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())):
        yield from _below(one, part, defs)
    if part in schema.get("properties", {}):
        yield schema["properties"][part]
    elif isinstance(schema.get("additionalProperties"), dict):
        yield schema["additionalProperties"]
    elif isinstance(schema.get("items"), dict):
        yield from _below(schema["items"], part, defs)


@pytest.fixture(scope="module")
def events() -> set[str]:
    """The names that the log gives to what happens."""
    product = (path for part in ("agent_core", "channels", "gateway") for path in (ROOT / part).rglob("*.py"))
    return {name for path in product for name in re.findall(r'"(\w+\.\w+)"', path.read_text())}


def test_each_setting_is_one(events):
    """Whatever is written as a setting with its section, and is no event of the log and no file."""
    tops = "|".join(Settings.model_fields)
    named = re.compile(rf"(?:{tops})(?:\.[A-Za-z_]\w*)+(?=(?:: .*)?$)")
    found = {
        match[0]: page
        for page in TODAY
        for text in _INLINE.findall(_BLOCK.sub("", page.read_text()))
        if (match := named.match(text))
    }
    wrong = {
        (page, name): part
        for name, page in found.items()
        if not name.endswith((".py", ".yaml", ".md", ".db"))
        and name not in events
        and (part := missing_setting(name))
    }
    assert wrong == {}


def test_a_wrong_setting_is_noticed():
    """The negative control."""
    assert missing_setting("gateway.http.console") == ""
    assert missing_setting("mcp.servers.NAME.trust") == ""
    assert missing_setting("channels.email.sent_copy") == ""
    assert missing_setting("gateway.http.consul") == "consul"
    assert "Extra inputs" in settings_problem("gateway: {htp: {}}")


_INSTALL = re.compile(r"\b(?:pip|pipx|uv tool|uv pip) install\b[^\n`]*")
_BY_NAME = re.compile(r"(?<![\w./*-])squidbot[\w-]*(?![\w./*-])")


def installs_by_name(text: str) -> list[str]:
    """Return the installs that name a package of ours in an index, where anybody could have registered it."""
    return [line for line in _INSTALL.findall(text) if _BY_NAME.search(line.partition("#")[0])]


def test_nothing_of_ours_is_installed_by_its_name():
    """Until it is published: from the clone, or from a file."""
    files = [*PAGES, *(ROOT / "examples").rglob("*.md")]
    files += [path for part in ("agent_core", "channels", "gateway") for path in (ROOT / part).rglob("*.py")]
    assert {path: found for path in files if (found := installs_by_name(path.read_text()))} == {}


def test_an_install_by_name_is_noticed():
    """The negative control."""
    assert installs_by_name("pip install 'squidbot-gateway[dav]'")
    assert installs_by_name("uv tool install . --with squidbot-irc")
    assert not installs_by_name("uv tool install . --with dist/squidbot_irc-*.whl\npip install '.[dav]'")


def slug(heading: str) -> str:
    """The anchor of a heading, as the usual forges make it."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def dead_links(page: Path, text: str) -> list[str]:
    """Return the links of a page to files that are not there and to headings that are not in them."""
    dead = []
    for link in _LINK.findall(_BLOCK.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            dead.append(link)
        elif anchor and anchor not in {slug(one) for one in _HEADING.findall(target.read_text())}:
            dead.append(link)
    return dead


def test_each_link_leads_somewhere():
    assert {page: dead for page in PAGES if (dead := dead_links(page, page.read_text()))} == {}


_NAMED = re.compile(r"\[([\w-]+\.md)\]\(([^)\s#]+)")


def misnamed_links(text: str) -> list[str]:
    """Return the links that are named like one page and lead to another; a file of the workspace is no page."""
    return [
        f"{name} {target}"
        for name, target in _NAMED.findall(text)
        if not target.endswith(name) and name != "PERSONA.md"
    ]


def test_a_link_that_is_named_like_a_page_leads_to_it():
    assert {page: found for page in TODAY if (found := misnamed_links(page.read_text()))} == {}
    assert misnamed_links("[people.md](approvals.md#x), [a.md](../deploy/a.md)") == ["people.md approvals.md"]


def test_a_dead_link_is_noticed():
    """The negative control."""
    text = "[a](docs/none.md) [b](#squidbot) [c](#three) [d](docs/memory.md) [e](docs/memory.md#none)"
    assert dead_links(ROOT / "README.md", text) == ["docs/none.md", "#three", "docs/memory.md#none"]
