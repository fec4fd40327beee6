"""No secret in a log line, in any disguise, and nothing else masked for it."""

from __future__ import annotations

import logging

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.redaction import MASK, Redactor, names_a_secret
from tests.log_lines import CANARY, logging_to, put_back_afterwards


@pytest.fixture(autouse=True)
def put_back():
    """Leaves the process's logging as it was."""
    with put_back_afterwards():
        yield


class TestSecrets:
    def test_no_canary_gets_through_in_any_disguise(self, tmp_path):
        """A configured secret is masked in values, in texts, nested, in exceptions, in library lines, in keys' values."""
        stream = logging_to(format="json", secrets=[CANARY], file=tmp_path / "x.log")
        log = structlog.get_logger().bind(bound=f"bound {CANARY}")
        structlog.contextvars.bind_contextvars(context=CANARY)
        log.info(
            "a.b",
            value=CANARY,
            text=f"it is {CANARY}!",
            nested={"a": [{"b": CANARY}]},
            error=ValueError(CANARY),
        )
        event = f"event {CANARY}"
        log.info(event)
        try:
            raise ConnectionError(f"login with {CANARY} failed")
        except ConnectionError:
            log.exception("a.failed")
            logging.getLogger("lib").exception("failed %s", CANARY)
        written = stream.getvalue() + (tmp_path / "x.log").read_text()
        assert "c4n4ry" not in written
        assert written.count(MASK) >= 12

    def test_the_same_lines_without_redaction_would_leak(self):
        """The negative control: unconfigured, the canary is there."""
        stream = logging_to(format="json", secrets=[])
        structlog.get_logger().info("a.b", text=f"it is {CANARY}!")
        assert CANARY in stream.getvalue()

    @pytest.mark.parametrize(
        "name",
        ["password", "imap_password", "access_token", "accessToken", "api_key", "apiKey", "API-KEY", "Authorization",
         "client_secret", "recovery_key", "Cookie", "private_key", "x.token"],
    )  # fmt: skip
    def test_values_under_telling_names_are_masked_whole(self, name):
        """Also values that nobody configured."""
        assert Redactor().fields({name: "whatever"}) == {name: MASK}
        assert Redactor().fields({name: {"a": 1}}) == {name: MASK}

    @pytest.mark.parametrize(
        "name",
        [
            "prompt_tokens",
            "tokens",
            "max_tokens",
            "session_key",
            "key",
            "secretary",
            "passed",
            "cookies_eaten",
        ],
    )
    def test_harmless_names_are_left_alone(self, name):
        """Counting tokens is no secret."""
        assert not names_a_secret(name)

    @pytest.mark.parametrize(
        "text",
        [
            "GET https://user:c4n4ry@host/",
            "Authorization: Bearer c4n4ry",
            "?access_token=c4n4ry&x=1",
            '{"password": "c4n4ry"}',
            "api_key='c4n4ry'",
            "key sk-c4n4ryc4n4ryc4n4ry",
            "token syt_c4n4ry_abcdefghijklmnop",
        ],
    )
    def test_well_known_shapes_are_masked_in_any_text(self, text):
        """What looks like a secret is treated as one."""
        assert "c4n4ry" not in Redactor().text(text)

    @pytest.mark.parametrize(
        "text",
        [
            "does not accept user_id @bot:hs.test with this password: check both; if they worked before",
            "the password: it was changed",
            "api_key: required",
            "secret: missing.",
        ],
    )
    def test_a_sentence_about_a_password_stays_whole(self, text):
        """Values are masked, not the words that tell what to do; the same words as values still are."""
        assert Redactor().text(text) == text
        for value in (
            "password=check",
            "password: 'check'",
            '{"password": "check"}',
            "password: c4n4ry check",
        ):
            assert MASK in Redactor().text(value), value

    def test_a_short_secret_is_masked_as_a_word_only(self):
        """The password "pw" of a test must not make the log unreadable, "demo" not every demonstration."""
        redactor = Redactor(["x", "pw", "demo"])
        assert redactor.text("x pw demo demonstration") == f"x pw {MASK} demonstration"

    def test_of_two_secrets_the_longer_one_wins(self):
        """No tail of a secret stays behind because another one is its beginning."""
        assert Redactor(["secretsecret", "secretsecretsecret"]).text("secretsecretsecret!") == f"{MASK}!"

    @given(st.text(min_size=8, max_size=30), st.text(max_size=30), st.text(max_size=30))
    def test_a_long_secret_is_masked_wherever_it_stands(self, secret, before, after):
        """Any text around any secret."""
        assert Redactor([secret]).redact_configured_secrets(before + secret + after).count(secret) <= (
            before + after
        ).count(secret)
