"""Plugins of other packages: none without being named, none of another version, no tool without a yes."""

from __future__ import annotations

import sys

import pytest
import yaml

from agent_core.models import ToolResult
from agent_core.provenance import Trust, trust_of
from agent_core.tools.effects import Effect, effect_of, needs_approval
from agent_core.tools.family import GuardedTool
from gateway import plugins
from gateway.cli.check.all_checks import _report_plugins
from gateway.cli.check.check_report import CheckReport
from gateway.errors import ConfigInvalid
from gateway.routing.access import Access, Alias, Role, kinds_of, normalise
from gateway.settings import load_settings
from tests.clock import ManualClock

PLUGIN = """
from channels.plugin import AccountConfig, AddressRules, ChannelPlugin
from agent_core.tools.family import FamilyConfig, ToolFamily

class PagerConfig(AccountConfig):
    number: str

class Numbers(AddressRules):
    example = "+4912345"
    def parse(self, text):
        text = text.replace(" ", "")
        return text if text.startswith("+") and text[1:].isdigit() else None

class Pager(ChannelPlugin):
    api = 1
    kind, config, addresses, address_key = "pager", PagerConfig, Numbers(), "number"
    def build(self, config, services):
        raise NotImplementedError

class LampConfig(FamilyConfig):
    bulb: str

class Lamp(ToolFamily):
    api, name, config = 1, "lamp", LampConfig
    def build(self, config, services):
        raise NotImplementedError

class Newer(Pager):
    api, kind = 2, "newer"

class Broken:
    api = 1
"""
ENTRIES = """
[squidbot.channels]
pager = pager_plugin:Pager
newer = pager_plugin:Newer
broken = pager_plugin:Broken
matrix = pager_plugin:Pager
gone = nothing_there:Gone

[squidbot.tools]
lamp = pager_plugin:Lamp
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A package with plugins, which this process does not know yet."""
    site = tmp_path / "site"
    info = site / "squidbot_pager-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "pager_plugin.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squidbot-pager\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(plugins, "_channels", dict(plugins._channels))
    monkeypatch.setattr(plugins, "_families", {})
    yield site
    sys.modules.pop("pager_plugin", None)
    plugins.normal_form.cache_clear()


def load(tmp_path, enabled, **more):
    file = tmp_path / "squidbot.yaml"
    file.write_text(yaml.safe_dump({"plugins": {"enabled": enabled}, **more}))
    file.chmod(0o600)
    return load_settings(file)


def test_an_installed_package_adds_nothing_by_itself(tmp_path):
    """Not a key of the settings, and nothing of it is imported."""
    load(tmp_path, [])
    assert "pager_plugin" not in sys.modules
    with pytest.raises(ConfigInvalid, match="unknown key"):
        load(tmp_path, [], channels={"pager": {"number": "+49"}})


def test_an_address_is_read_again_when_a_plugin_brings_its_kind(tmp_path):
    """The form of an address is kept, and what was kept before does not outlive the kinds of then."""
    assert normalise("+49 1") == "+49 1"
    load(tmp_path, ["pager"], channels={"pager": {"number": "+3"}})
    assert normalise("+49 1") == "+491"


def test_an_enabled_plugin_has_settings_and_addresses_like_ours(tmp_path):
    """One account or several, checked entries, and an owner by an address that only this kind has."""
    one = {"number": "+1", "allow_from": ["+2"]}
    settings = load(
        tmp_path,
        ["pager"],
        channels={"pager": [one, {"number": "+3", "name": "b"}]},
        owner={"aliases": ["+9"]},
    )
    assert settings.channels.kinds() == {"pager": "pager", "b": "pager"}
    assert settings.owner.aliases == (Alias("pager", "+9"),)
    access = Access(settings.owner.aliases, settings.allow_from(), kinds=settings.channels.kinds())
    assert access.role("b", "+9", verified=True) is Role.OWNER
    assert access.role("pager", "+2", verified=True) is Role.ALLOWED
    assert access.role("pager", "+3", verified=True) is Role.STRANGER
    with pytest.raises(ConfigInvalid, match="neither an address such as"):
        load(tmp_path, ["pager"], channels={"pager": {**one, "allow_from": ["bob"]}})


def test_an_address_of_two_kinds_must_name_its_channel(tmp_path, monkeypatch):
    """Nobody guesses whose it is."""
    load(tmp_path, ["pager"])
    monkeypatch.setattr(plugins._channels["pager"].addresses, "parse", lambda text: text, raising=False)
    assert kinds_of("a@b.test") == ["email", "pager"]
    with pytest.raises(ConfigInvalid, match="can be an address on email and pager"):
        load(tmp_path, ["pager"], owner={"aliases": ["a@b.test"]})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("newer", "squidbot-pager 1.2 is made for version 2"),
        ("broken", "squidbot-pager 1.2 is broken"),
        ("gone", "squidbot-pager 1.2 cannot be loaded: ModuleNotFoundError"),
        ("fax", "uv tool install . --with PATH/squidbot_fax.whl"),
        ("matrix", "cannot be the name of a plugin"),
        ("shell", "cannot be the name of a plugin"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_package(tmp_path, name, said):
    """With the line of the settings, and what to do."""
    with pytest.raises(ConfigInvalid, match=said) as caught:
        load(tmp_path, ["pager", name])
    assert "plugins.enabled[1]" in str(caught.value)


def test_a_family_of_tools_has_its_settings(tmp_path):
    """What is needed is asked for."""
    assert load(tmp_path, ["lamp"], tools={"lamp": {"bulb": "hall"}}).tools.lamp.allow == "owner"
    with pytest.raises(ConfigInvalid, match=r"tools.*is missing"):
        load(tmp_path, ["lamp"])


def test_check_lists_each_with_its_package(tmp_path):
    """Enabled or not."""
    report = CheckReport()
    _report_plugins(report, load(tmp_path, ["pager"]))
    text = report.as_text()
    assert "plugin pager: squidbot-pager 1.2, squidbot.channels version 1; it runs with all rights" in text
    assert "plugin lamp: squidbot-pager 1.2 is installed and not in plugins.enabled" in text


class Lamp:
    name, description, parameters = "lamp_on", "Switches it on.", {}
    effect = Effect.READ
    repeatable = True

    async def execute(self, **arguments):
        return ToolResult(content="the neighbour says: on")


@pytest.mark.parametrize(
    ("said", "effect", "asked"),
    [(None, Effect.EXECUTE, True), (Effect.READ, Effect.READ, False), (Effect.SEND, Effect.EXECUTE, True)],
)
async def test_only_the_owner_lowers_the_guard(said, effect, asked):
    """A tool counts as a program until the settings repeat what it declares; its words are anybody's."""
    tool = GuardedTool(Lamp(), "lamp", said, ManualClock())
    assert (effect_of(tool, {}), needs_approval(tool, {})) == (effect, asked)
    result = await tool.execute()
    assert trust_of(result.origins) is Trust.UNTRUSTED
    assert tool.repeatable is not asked
