"""Mistakes in the configuration: each has a file, a key, a line and a remedy; all come at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings
from tests.config_files import FULL, complaint, complaints, loaded


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("agents:\n  wrkspace: x", 'line 2, agents.wrkspace: unknown key; did you mean "workspace"?'),
            ("chanels: {}", 'line 1, chanels: unknown key; did you mean "channels"?'),
            ("gateway:\n  log:\n    zzz: 1", "line 3, gateway.log.zzz: unknown key; known here: level, format, file, max_file_mb, keep_files"),
            (
                "llm:\n  models:\n    m: {model: demo/x, maxtokens: 1}\n  pools: {main: [m]}",
                'line 3, llm.models.m.maxtokens: unknown key; did you mean "max_tokens"?',
            ),
            ("agents:\n  workspace: 5", "line 2, agents.workspace: must be text; put it in quotes if it looks like a number, not 5"),
            ("gateway: {max_concurrent_turns: many}", "line 1, gateway.max_concurrent_turns: must be a whole number, not 'many'"),
            ("gateway: {max_concurrent_turns: 0}", "line 1, gateway.max_concurrent_turns: must be greater than or equal to 1, not 0"),
            ("agents: {keep_recent_ratio: 1}", "line 1, agents.keep_recent_ratio: must be less than 1, not 1"),
            ("agents: {keep_recent_ratio: 0}", "line 1, agents.keep_recent_ratio: must be greater than 0, not 0"),
            ("agents: {keep_recent_ratio: -0.2}", "line 1, agents.keep_recent_ratio: must be greater than 0, not -0.2"),
            ("gateway: {durability: sometimes}", "line 1, gateway.durability: must be 'full' or 'process', not 'sometimes'"),
            ("gateway:\n  log:", 'line 2, gateway.log: must be "key: value" lines; it is empty'),
            ("skills: {always: memory}", "line 1, skills.always: must be a list, such as [\"one\", \"two\"], not 'memory'"),
            ("skills:\n  always:\n    - a\n    - {b: 1}", "line 4, skills.always[1]: must be text; put it in quotes if it looks like a number"),
            ("agents: {restrict_to_workspace: maybe}", "line 1, agents.restrict_to_workspace: must be true or false, not 'maybe'"),
            ("gateway: {http: {listen: '8811'}}", 'line 1, gateway.http.listen: must be "host:port", such as "127.0.0.1:8811"; got \'8811\''),
        ],
    )  # fmt: skip
    def test_a_mistake_is_told_with_line_key_and_remedy(self, tmp_path, text, expected):
        """One sentence per mistake, the line is that of the key."""
        assert complaint(tmp_path, text) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("heartbeat: {active_hours_start: '25:00'}", "active_hours_start"),
            ("heartbeat: {active_hours_end: '24:30'}", "active_hours_end"),
            ("heartbeat: {timezone: Mars/Base}", "unknown time zone 'Mars/Base'"),
            ("heartbeat: {interval_minutes: 0}", "interval_minutes"),
            ("consolidation_pool: nope", "agents.consolidation_pool: there is no pool 'nope'"),
            ("heartbeat: {pool: nope}", "agents.heartbeat.pool: there is no pool 'nope'"),
        ],
    )
    def test_the_agents_part_is_checked(self, tmp_path, text, expected):
        """Times, zones, pools."""
        assert expected in complaint(tmp_path, f"agents:\n  {text}\n")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("default_pool: mian\n  models: {m: {model: demo/x}}\n  pools: {main: [m]}", "line 2, llm.default_pool: there is no pool 'mian'; did you mean 'main'?"),
            ("pools:\n    main:\n      - a", "line 4, llm.pools.main[0]: there is no model 'a'; known: none"),
            ("pools:\n    main: []", "line 3, llm.pools.main: the pool is empty; list at least one model"),
            ("models:\n    a.b:\n      provider: p\n      model: x\n  pools: {main: [a.b]}", "line 4, llm.models.a.b.provider: there is no provider 'p'; known: none"),
        ],
    )  # fmt: skip
    def test_references_between_the_parts_name_the_wrong_key(self, tmp_path, text, expected):
        """Pools, models and providers that do not exist."""
        assert complaint(tmp_path, f"llm:\n  {text}\n") == expected

    @pytest.mark.parametrize(
        ("alias", "expected"),
        [
            ("bob", "'bob' is neither a Matrix id"),
            ('"@bob"', "'@bob' is neither"),
            ("{channel: email}", "exactly the keys channel and address"),
            ("{channel: irc, address: a}", "no channel 'irc'"),
            ('{channel: matrix, address: "a@b.c"}', "not an address on the channel matrix"),
            ("5", "must be an address"),
        ],
    )
    def test_an_alias_is_an_address_on_a_channel(self, tmp_path, alias, expected):
        """An alias that could never match anybody is an error, not a locked-out owner."""
        told = complaint(tmp_path, f"owner:\n  aliases:\n    - {alias}\n")
        assert told.startswith("line 3, owner.aliases[0]: ")
        assert expected in told

    def test_an_odd_entry_of_the_mail_list_is_an_error(self, tmp_path):
        """A pattern that looks as if it let people in."""
        text = FULL.replace('"${file:secret}"', "pw").replace(
            '["alice@mail.test"]', '["a@b.c", "*x@b.c", "@a:b"]'
        )
        told = complaints(tmp_path, text, {"LLM_KEY": "k"})
        assert "channels.email.allow_from[1]: '*x@b.c' is not a valid entry" in told
        assert "channels.email.allow_from[2]: '@a:b' is a Matrix id" in told

    def test_all_mistakes_come_at_once_in_the_order_of_the_file(self, tmp_path):
        """Types, unknown keys, references, duplicates and cross-checks in one list."""
        text = """\
gateway:
  durability: x
  durability: y
  nope: 1
agents:
  workspace: "${NOPE}"
  keep_recent_ratio: 2
llm:
  models:
    m: {provider: missing, model: x, max_tokens: many}
  pools: {main: [m, n]}
"""
        head, *lines = complaints(tmp_path, text).splitlines()
        assert head.endswith(": 8 problems")
        assert [int(line.split()[1].rstrip(",")) for line in lines] == [2, 3, 4, 6, 7, 10, 10, 11]

    def test_a_listener_for_the_whole_network_must_be_wished_for_twice(self, tmp_path):
        """Nobody has to log in there, so the first wish is questioned."""
        assert "allow_remote: true" in complaint(tmp_path, 'gateway: {http: {listen: "0.0.0.0:80"}}')
        assert loaded(tmp_path, 'gateway: {http: {listen: "0.0.0.0:80", allow_remote: true}}').gateway.http

    def test_the_console_is_reached_by_https_alone(self, tmp_path):
        """`allow_remote` is not enough for it: the owner's session would cross the network as it is."""
        far = 'listen: "0.0.0.0:80", allow_remote: true, console: true'
        assert "console_url, the https address" in complaint(tmp_path, f"gateway: {{http: {{{far}}}}}")
        for url, is_fine in (("https://squid.example.org", True), ("http://squid.example.org", False)):
            text = f'gateway: {{http: {{{far}, console_url: "{url}"}}}}'
            if is_fine:
                assert loaded(tmp_path, text).gateway.http.console
            else:
                assert "console_url" in complaint(tmp_path, text)
        here = 'gateway: {http: {listen: "127.0.0.1:80", console: true}}'
        assert loaded(tmp_path, here).gateway.http.console


def test_what_could_steer_a_terminal_or_fake_a_line_is_written_as_an_escape(tmp_path: Path) -> None:
    """Keys and values of the file stand in the report of its problems."""
    file = tmp_path / "c.yaml"
    file.write_text('channels: {"ma\\e[31m\\ntrix": 5}\n')
    with pytest.raises(ConfigInvalid) as raised:
        load_settings(file)
    told = str(raised.value)
    assert told.replace("\n", "").isprintable()
    assert len(told.splitlines()) == 2
    assert "ma\\x1b[31m\\ntrix" in told
