"""The configuration in a backup: no secret, and still one that can be read."""

from __future__ import annotations

import pytest
import yaml

from gateway.operations.backup.backup_settings import kept_config

MATRIX = "homeserver: 'http://127.0.0.1:9', user_id: '@b:hs.test', allow_from: ['@a:hs.test']"


def kept(tmp_path, text):
    config = tmp_path / "squidbot.yaml"
    config.write_text(text)
    config.chmod(0o600)
    return kept_config(tmp_path, config, with_secrets=False)


@pytest.mark.parametrize(
    "secret", ["hunter2", "a-long-secret-text", "12345678", "matrix", "demo", "demo/demo"]
)
@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize("flow", [True, False])
def test_what_is_kept_can_be_read(tmp_path, secret, quote, flow):
    """In the block and the flow style, with and without quotes: only the value goes, keys and paths stay."""
    if secret.isdigit() and not quote:
        pytest.skip("a number is no password")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "ca.pem").touch()
    account = f"{MATRIX}, tls_ca_file: {tmp_path}/demo/ca.pem, password: {quote}{secret}{quote}"
    lines = "\n".join(f"    {each}" for each in account.split(", "))
    text = f"channels:\n  matrix: {{{account}}}\n" if flow else f"channels:\n  matrix:\n{lines}\n"
    before = yaml.safe_load(text)["channels"]["matrix"]
    after = yaml.safe_load(kept(tmp_path, text).text)["channels"]["matrix"]
    assert after.pop("password") == "${secret:left-out-1}"
    before.pop("password")
    assert after == before


def test_a_secret_goes_from_wherever_it_stands(tmp_path):
    """From a comment and from inside of another value, too."""
    secret = "correct-horse-battery"
    text = (
        f"# it was {secret}\nllm:\n  providers:\n    p: {{api_base: 'http://127.0.0.1:9', api_key: {secret}}}\n"
        f"mcp:\n  servers:\n    m: {{url: 'http://127.0.0.1:9', headers: {{Authorization: Bearer {secret}}}}}\n"
    )
    found = kept(tmp_path, text)
    assert secret.encode() not in (found.text or b"")
    assert found.text is None or yaml.safe_load(found.text)["llm"]["providers"]["p"]["api_key"].startswith(
        "${"
    )


def test_what_cannot_be_taken_apart_is_left_out(tmp_path):
    """The control: a key that is the secret itself."""
    name = "a-name-that-is-one"
    text = f"llm:\n  providers:\n    {name}: {{api_base: 'http://127.0.0.1:9', api_key: {name}}}\n"
    found = kept(tmp_path, text)
    assert found.text is None
    assert "could not be separated" in " ".join(found.notes)
