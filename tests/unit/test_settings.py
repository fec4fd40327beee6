"""The configuration: every mistake has a file, a key, a line and a remedy; all at once; no secret in any text."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.access import Alias
from gateway.errors import ConfigInvalid
from gateway.settings import Settings, is_loopback, load_settings, parse_listen

CANARY = "c4n4ry-s3cr3t"

FULL = """\
owner:
  aliases: ["@alice:hs.test", "alice@mail.test", {channel: email, address: "a@other.test"}]
llm:
  default_pool: main
  limits: {steps: 5}
  providers:
    local: {api_base: "http://127.0.0.1:9999/v1", api_key: "${LLM_KEY}"}
  models:
    small: {provider: local, model: "openai/some-model", max_tokens: 1024, max_context_tokens: 32000}
  pools:
    main: [small]
agents:
  workspace: workspace
  restrict_to_workspace: true
  consolidation_threshold: 100
  keep_recent_ratio: 0.2
  consolidation_pool: ""
  heartbeat:
    enabled: true
    interval_minutes: 30
    active_hours_start: 08:00
    active_hours_end: 22:30
    timezone: Europe/Berlin
    pool: ""
channels:
  matrix:
    enabled: true
    homeserver: "http://127.0.0.1:8008"
    user_id: "@bot:hs.test"
    password: "${file:secret}"
    allow_from: ["@alice:hs.test"]
    group_policy: mention
    queue: merge
  email:
    enabled: true
    address: "bot@mail.test"
    username: "bot@mail.test"
    password: "$${literal} and more"
    imap: {host: 127.0.0.1, port: 1993, security: tls}
    smtp: {host: 127.0.0.1, port: 1587, security: starttls}
    allow_from: ["alice@mail.test"]
    trusted_authserv_ids: ["mail.test"]
    sender_verification: off
    limits: {sender_per_hour: 10, sender_per_day: 40, thread_per_hour: 6, total_per_hour: 100}
gateway:
  http: {listen: "127.0.0.1:8811"}
  log: {level: debug, format: json, file: logs/squidbot.log}
  max_concurrent_turns: 2
  durability: process
skills:
  always: [memory]
"""


def write(folder, text, *, mode=0o600):
    path = folder / "squidbot.yaml"
    path.touch(mode=mode)
    path.write_text(text)
    path.chmod(mode)
    return path


def loaded(folder, text, environ=None, **options):
    return load_settings(write(folder, text, **options), environ=environ or {})


def complaints(folder, text, environ=None):
    with pytest.raises(ConfigInvalid) as caught:
        loaded(folder, text, environ)
    assert caught.value.exit_code == 78
    return str(caught.value)


def complaint(folder, text, environ=None):
    head, *lines = complaints(folder, text, environ).splitlines()
    assert head == f"{folder / 'squidbot.yaml'}: 1 problem", [head, *lines]
    return lines[0].strip()


class TestGood:
    @pytest.fixture
    def settings(self, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text(f"{CANARY}\n")
        secret.chmod(0o600)
        return loaded(tmp_path, FULL, {"LLM_KEY": "sk-key-from-env"})

    def test_every_documented_key_is_taken(self, settings):
        """The example of the design, with references, aliases of three forms, and unquoted times and words."""
        assert settings.owner.aliases == (
            Alias("matrix", "@alice:hs.test"),
            Alias("email", "alice@mail.test"),
            Alias("email", "a@other.test"),
        )
        assert settings.llm.providers["local"].api_key.get_secret_value() == "sk-key-from-env"
        assert settings.llm.limits.steps == 5
        assert settings.channels.matrix.password.get_secret_value() == CANARY
        assert settings.channels.email.password.get_secret_value() == "${literal} and more"
        assert settings.channels.email.sender_verification == "off"
        assert settings.agents.heartbeat.active_hours_start == "08:00"
        assert settings.gateway.http.listen == "127.0.0.1:8811"
        assert settings.gateway.durability == "process"
        assert settings.skills.always == ("memory",)
        assert settings.allow_from() == {"matrix": ("@alice:hs.test",), "email": ("alice@mail.test",)}

    def test_no_secret_is_in_any_representation(self, settings):
        """Printing the settings, as one does in a hurry, shows nothing."""
        for text in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump())):
            assert CANARY not in text and "sk-key-from-env" not in text and "and more" not in text

    def test_the_log_gets_every_secret_to_mask(self, settings):
        """Values of secret keys and everything that came by reference."""
        assert {CANARY, "sk-key-from-env", "${literal} and more"} <= settings.secrets()

    def test_nothing_is_needed(self, tmp_path):
        """An empty file is a bot with the demo model and no channel."""
        settings = loaded(tmp_path, "# nothing\n")
        assert settings.llm.is_empty
        assert settings.channels.enabled() == {}
        assert settings.gateway.http is None
        assert settings.gateway.durability == "full"

    def test_a_provider_needs_no_key(self, tmp_path):
        """A local model has none."""
        text = "llm: {providers: {p: {api_base: 'http://h'}}, models: {m: {provider: p, model: x}}, pools: {main: [m]}}"
        assert loaded(tmp_path, text).llm.providers["p"].api_key.get_secret_value() == ""

    def test_settings_are_frozen(self):
        """Nobody changes them on the way."""
        with pytest.raises(ValueError, match="frozen"):
            Settings().gateway.max_concurrent_turns = 9

    def test_a_missing_file_is_an_error_unless_allowed(self, tmp_path):
        """The daemon needs one, a chat does not."""
        with pytest.raises(ConfigInvalid, match="no such file"):
            load_settings(tmp_path / "none.yaml")
        assert load_settings(tmp_path / "none.yaml", missing_ok=True) == Settings()


class TestReferences:
    def test_several_in_one_text_are_replaced(self, tmp_path):
        """References stand anywhere in a text; `$${` and a lone `$` do not."""
        (tmp_path / "f").write_text("F\r\n")
        text = 'agents: {workspace: "a${X}b${file:f}c$${X}d$X$"}'
        assert loaded(tmp_path, text, {"X": "x"}).agents.workspace == "axbFc${X}d$X$"

    def test_a_replaced_text_is_not_looked_at_again(self, tmp_path):
        """A password may contain what looks like a reference."""
        assert loaded(tmp_path, 'agents: {workspace: "${X}"}', {"X": "${Y}"}).agents.workspace == "${Y}"

    @pytest.mark.parametrize(
        ("reference", "words"),
        [
            ("${NOPE}", "environment variable NOPE is not set"),
            ("${file:none}", "cannot be read: No such file"),
            ("${file:}", "names no file"),
            ("${file:/dev/zero}", "not a file"),
            ("${file:.}", "not a file"),
            ("${}", "is no reference"),
            ("${a-b}", "is no reference"),
        ],
    )
    def test_a_reference_to_nothing_is_an_error_with_its_key_and_line(self, tmp_path, reference, words):
        """Nothing is silently empty."""
        told = complaint(tmp_path, f'agents:\n  workspace: "x{reference}"\n')
        assert told.startswith("line 2, agents.workspace: ")
        assert words in told

    def test_a_number_may_come_from_the_environment(self, tmp_path):
        """A reference is text, and text that is a number is one where one is wanted."""
        assert (
            loaded(
                tmp_path, 'gateway: {max_concurrent_turns: "${N}"}', {"N": "7"}
            ).gateway.max_concurrent_turns
            == 7
        )


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
            ("gateway:", 'line 1, gateway: must be "key: value" lines; it is empty'),
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
            ("{channel: irc, address: a}", "there is no channel 'irc'"),
            ('{channel: matrix, address: "a@b.c"}', "no address on the channel matrix"),
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
        assert "channels.email.allow_from[1]: '*x@b.c' is no entry" in told
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


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a: [1\nb: 2", "line 2, column 2: bad YAML"),
            ("a:\n\t- x", "indent with spaces, not with tabs"),
            ("- a", 'line 1, column 1: must consist of "key: value" lines'),
            ("just text", 'must consist of "key: value" lines'),
            ("a: *b", "undefined alias"),
            ("a: b: c", "bad YAML"),
            ("a: @b:c", "put the text in quotes"),
            ("'a", "bad YAML"),
            ("a: 1\n---\nb: 2", "bad YAML"),
            ("? [a]\n: b", "a key must be plain text"),
            ("agents: {workspace: !secret x}", "the tag !secret means nothing here"),
            ("agents: {workspace: a, workspace: b}", "line 1, agents.workspace: stands twice"),
            ("\x00", "bad YAML"),
        ],
    )
    def test_what_is_no_yaml_is_told_with_its_place(self, tmp_path, text, expected):
        """The parser's own words, with line and column."""
        assert expected in complaint(tmp_path, text)

    def test_a_key_that_stands_twice_would_vanish_in_the_usual_reader(self, tmp_path):
        """The negative control for duplicates, and for YAML 1.1's words and times."""
        assert yaml.safe_load("a: 1\na: 2") == {"a": 2}
        assert yaml.safe_load("a: off") == {"a": False}
        assert yaml.safe_load("a: 22:00") == {"a": 1320}

    @pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &x [1,1,1,1,1,1,1,1,1]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n-1}' if n else '*a'] * 9)}]\n".replace("*a", "*x") for n in range(9))])  # fmt: skip
    def test_aliases_that_unfold_without_end_are_refused(self, tmp_path, text):
        """A small file must not fill the memory."""
        assert "unfolds without end" in complaints(tmp_path, text)

    def test_an_unreadable_file_is_told(self, tmp_path):
        """A folder, garbage bytes, a huge file."""
        with pytest.raises(ConfigInvalid, match="not a file"):
            load_settings(tmp_path)
        path = tmp_path / "x.yaml"
        path.write_bytes(b"a: \xff\xfe")
        with pytest.raises(ConfigInvalid, match="not UTF-8"):
            load_settings(path)
        path.write_bytes(b"#" * 1_000_001)
        with pytest.raises(ConfigInvalid, match="right file"):
            load_settings(path)

    @given(st.text(max_size=200))
    @hypothesis_settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
    )
    def test_no_text_is_more_than_a_complaint(self, tmp_path, text):
        """Whatever the file holds, the outcome is settings or `ConfigInvalid`."""
        path = tmp_path / "fuzz.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            load_settings(path, environ={})
        except ConfigInvalid as error:
            assert "problem" in str(error)

    @given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["owner", "llm", "agents", "channels", "gateway", "models", "pools", "providers", "matrix", "email", "http", "log", "listen", "heartbeat", "aliases", "main", "x"]), inner, max_size=4), max_leaves=12))  # fmt: skip
    @hypothesis_settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
    )
    def test_no_shape_is_more_than_a_complaint(self, tmp_path, data):
        """Right keys in wrong places, with wrong values."""
        path = tmp_path / "fuzz.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        try:
            load_settings(path, environ={})
        except ConfigInvalid as error:
            assert "problem" in str(error)


class TestSecrets:
    @pytest.mark.parametrize(
        "text",
        [
            f"channels: {{matrix: {{homeserver: x, user_id: y, password: {CANARY}, bad: 1}}}}",
            f"channels: {{matrix: {{password: [{CANARY}]}}}}",
            f"llm: {{providers: {{p: {{api_key: {CANARY}, api_base: '${{KEY}}'}}}}}}",
            "gateway: {durability: '${KEY}'}",
            "gateway: {max_concurrent_turns: '${KEY}'}",
            "owner: {aliases: ['${KEY}']}",
            "llm: {default_pool: '${KEY}', pools: {main: []}}",
            f"channels: {{email: {{password: {CANARY}, username: {{password: {CANARY}}}}}}}",
        ],
    )
    def test_no_complaint_shows_a_secret(self, tmp_path, text):
        """Neither the value of a secret key nor what a reference brought."""
        assert CANARY not in complaints(tmp_path, text, {"KEY": CANARY})

    def test_a_file_with_secrets_that_others_can_read_is_warned_of(self, tmp_path):
        """Both the configuration with a literal secret and the file that a reference names."""
        text = "llm: {providers: {p: {api_key: secret}}, models: {m: {provider: p, model: x}}, pools: {main: [m]}}"
        assert "chmod 600" in " ".join(loaded(tmp_path, text, mode=0o644).warnings)
        assert loaded(tmp_path, text, mode=0o600).warnings == ()
        assert loaded(tmp_path, text.replace("secret", "'${K}'"), {"K": "v"}, mode=0o644).warnings == ()
        (tmp_path / "key").write_text("v")
        (tmp_path / "key").chmod(0o640)
        warnings = loaded(tmp_path, text.replace("secret", "'${file:key}'"), mode=0o644).warnings
        assert [str(tmp_path / "key") in warning for warning in warnings] == [True]

    def test_a_channel_that_nobody_can_use_is_warned_of(self, tmp_path):
        """Default deny is no error, but hardly meant."""
        text = "channels: {matrix: {homeserver: 'http://h', user_id: '@b:h', password: '${P}'}}"
        warnings = loaded(tmp_path, text, {"P": "p"}).warnings
        assert any("nobody can talk to the bot" in warning for warning in warnings)

    def test_a_rule_for_one_room_lets_somebody_in(self, tmp_path):
        """Who is named for one room only can talk to the bot there, so there is nothing to warn of."""
        room = "rooms: {'!r:h': {allow_from: ['@a:h']}}"
        text = (
            f"channels: {{matrix: {{homeserver: 'http://h', user_id: '@b:h', password: '${{P}}', {room}}}}}"
        )
        warnings = loaded(tmp_path, text, {"P": "p"}).warnings
        assert not any("nobody can talk to the bot" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("text", "expected"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), (" localhost:65535 ", ("localhost", 65535))]
)  # fmt: skip
def test_a_listen_address_is_host_and_port(text, expected):
    """IPv6 in brackets."""
    assert parse_listen(text) == expected
    assert is_loopback(expected[0])


@pytest.mark.parametrize("text", ["", ":80", "h", "h:x", "h:65536", "::1:80", "h:-1", "h:²"])
def test_other_listen_addresses_are_refused(text):
    """What the socket would refuse later, or misread."""
    with pytest.raises(ValueError, match=r"must be|brackets"):
        parse_listen(text)


def test_only_this_machine_is_loopback():
    """A name that could point anywhere is not."""
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org") and not is_loopback("")


def test_the_environment_is_the_default_source(tmp_path, monkeypatch):
    """Without an argument, the process's own environment is asked."""
    monkeypatch.setenv("SQUIDBOT_TEST_X", "here")
    path = write(tmp_path, 'agents: {workspace: "${SQUIDBOT_TEST_X}"}')
    assert load_settings(path).agents.workspace == "here"
