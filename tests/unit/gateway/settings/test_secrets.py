"""``${secret:NAME}``: one configuration for systemd, containers and a folder beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings
from gateway.settings.cross_checks import permission_warnings
from gateway.settings.source import Source, is_secret_file_name, secret_places

TEXT = """\
llm:
  providers: {mine: {api_key: "${secret:model-key}", api_base: "http://127.0.0.1:1/v1"}}
  models: {one: {provider: mine, model: "openai/x"}}
  pools: {main: [one]}
  default_pool: main
"""


def loaded_key(folder: Path, environ: dict[str, str]) -> str | None:
    config = folder / "squidbot.yaml"
    config.write_text(TEXT)
    config.chmod(0o600)
    key = load_settings(config, environ=environ).llm.providers["mine"].api_key
    return key.get_secret_value() if key is not None else None


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def test_a_secret_lies_beside_the_configuration(tmp_path: Path) -> None:
    """Without a service manager ``secrets/NAME`` beside the file is read, without its line break."""
    put(tmp_path / "secrets" / "model-key", "beside\n")
    assert loaded_key(tmp_path, {}) == "beside"


@pytest.mark.parametrize("name", ["model-key", "squidbot_secrets_model-key"])
def test_what_the_service_manager_hands_over_comes_first(tmp_path: Path, name: str) -> None:
    """A credential of systemd beats the folder, loaded by itself or with its whole folder."""
    put(tmp_path / "secrets" / "model-key", "beside")
    put(tmp_path / "handed" / name, "handed")
    assert loaded_key(tmp_path, {"CREDENTIALS_DIRECTORY": str(tmp_path / "handed")}) == "handed"


def test_the_places_are_in_their_order(tmp_path: Path) -> None:
    """systemd, then the container, then the folder; nothing else is ever looked at."""
    environ = {"CREDENTIALS_DIRECTORY": "/handed"}
    assert [str(place) for place in secret_places("x", beside=Path("/etc/squidbot"), environ=environ)] == [
        "/handed/x",
        "/handed/squidbot_secrets_x",
        "/run/secrets/x",
        "/etc/squidbot/secrets/x",
    ]


def test_a_missing_secret_names_every_place_and_no_other_secret(tmp_path: Path) -> None:
    """What is missing is told with its line and where it was looked for."""
    with pytest.raises(ConfigInvalid) as caught:
        loaded_key(tmp_path, {})
    assert "there is no secret model-key" in str(caught.value)
    assert str(tmp_path / "secrets" / "model-key") in str(caught.value)


def test_a_secret_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    """A place that exists and cannot be read is an error, not a reason to look elsewhere."""
    (tmp_path / "handed" / "model-key").mkdir(parents=True)
    put(tmp_path / "secrets" / "model-key", "beside")
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        loaded_key(tmp_path, {"CREDENTIALS_DIRECTORY": str(tmp_path / "handed")})


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 101])
def test_names_are_never_paths(tmp_path: Path, name: str) -> None:
    """No name leads out of the folders of secrets."""
    assert not is_secret_file_name(name)
    config = tmp_path / "squidbot.yaml"
    config.write_text(TEXT.replace("model-key", name))
    with pytest.raises(ConfigInvalid, match="is not a valid name for a secret"):
        load_settings(config, environ={})


def test_the_mode_of_what_is_handed_over_is_not_ours(tmp_path: Path) -> None:
    """systemd gives credentials 0440 with an ACL: no warning there, and one for the same file elsewhere."""
    handed = tmp_path / "credentials" / "key"
    put(handed, "k")
    handed.chmod(0o440)
    source = Source(tmp_path / "squidbot.yaml")
    source.files.append(handed)

    assert permission_warnings(source, handed_over=[handed.parent]) == []
    assert len(permission_warnings(source)) == 1
