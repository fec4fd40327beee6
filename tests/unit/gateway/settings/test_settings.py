"""The configuration as it is read: every documented key, references, secrets that stay hidden, places to listen."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigInvalid
from gateway.routing.access import Alias
from gateway.settings import Settings, load_settings
from gateway.settings.problems import is_loopback, parse_listen
from tests.config_files import CANARY, FULL, complaint, complaints, loaded, write


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
            ("${}", "is not a reference"),
            ("${a-b}", "is not a reference"),
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
    ("row", "said"),
    [
        ("execute: {untrusted: allow}", ["tools.policy.execute.untrusted: ", "words of anybody"]),
        ("persist: {untrusted: allow, known: ask}", ["tools.policy.persist.untrusted: "]),
        (
            "send: {owner: allow}",
            ["tools.policy.send.owner: squidbot makes such a call without asking, where"],
        ),
        ("write_workspace: {known: allow}", ["tools.policy.write_workspace.known", "another person's words"]),
        ("execute: {owner: ask, known: deny, untrusted: ask}", []),
        ("send: {owner: ask}", []),
        ("network_get: {}", []),
    ],
)
def test_a_policy_that_is_less_strict_than_the_default_is_warned_of(tmp_path, row, said):
    """A stricter one, or the same, is not."""
    warnings = [
        each for each in loaded(tmp_path, f"tools: {{policy: {{{row}}}}}").warnings if "policy" in each
    ]
    assert len(warnings) == (1 if said else 0)
    assert all(each in warnings[0] for each in said)


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


def test_a_section_of_which_all_lines_were_removed_is_an_empty_one(tmp_path):
    """The control: a key of a section is not."""
    assert loaded(tmp_path, "gateway:\nattachments:\n", {}).store_url is None
    with pytest.raises(ConfigInvalid):
        loaded(tmp_path, "gateway:\n  log:\n    level:\n", {})
