"""The settings of a Matrix account: each mistake is named with its remedy."""

import pytest
import yaml
from pydantic import ValidationError

from channels.matrix.config import MatrixConfig, names_person

GOOD = {"homeserver": "http://127.0.0.1:8008", "user_id": "@bot:hs.test", "password": "pw"}


def test_the_contract_example_is_taken():
    """The keys of the documented example, and defaults that let nobody in."""
    config = MatrixConfig(
        **GOOD, enabled=True, allow_from=["@alice:hs.test"], group_policy="mention", batching="merge"
    )

    assert config.allows("@alice:hs.test")
    assert not config.allows("@mallory:hs.test")
    assert not MatrixConfig(**GOOD).allows("@alice:hs.test")


def test_who_is_allowed():
    """A whole server or everybody can be named; look-alikes are not let in."""
    server = MatrixConfig(**GOOD, allow_from=["@*:hs.test"])

    assert server.allows("@anyone:hs.test")
    assert not server.allows("@anyone:evil-hs.test")
    assert not server.allows("@x:hs.test.evil")
    assert MatrixConfig(**GOOD, allow_from=["*"]).allows("@a:b")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"homeserver": "matrix.example.org"}, "https://"),
        ({"homeserver": "https://user:pw@matrix.example.org"}, "credentials"),
        ({"user_id": "bot"}, "@bot:example.org"),
        ({"user_id": "@bot"}, "@bot:example.org"),
        ({"password": None}, "password is missing"),
        ({"password": ""}, "password is missing"),
        ({"password": None, "access_token": "t"}, "device_id"),
        ({"allow_from": ["alice"]}, "not a Matrix id"),
        ({"allow_from": ["@a*:hs.test"]}, "not a Matrix id"),
        ({"group_policy": "allowlist", "group_allow_from": ["#room:hs.test"]}, "room id"),
        ({"group_allow_from": ["!room:hs.test"]}, "allowlist"),
        ({"group_policy": "never"}, "mention"),
        ({"pasword": "x"}, "pasword"),
    ],
)
def test_mistakes_are_explained(changes, words):
    """The message says what is wrong and what it should be."""
    with pytest.raises(ValidationError) as caught:
        MatrixConfig(**{**GOOD, **changes})

    assert words in str(caught.value)


def test_secrets_are_not_shown():
    """Neither password nor token appears when settings are printed."""
    config = MatrixConfig(**{**GOOD, "password": "s3cret", "access_token": "t0ken", "device_id": "D"})

    assert "s3cret" not in repr(config)
    assert "t0ken" not in repr(config)


def test_a_bare_off_is_the_word():
    """YAML reads it as false; it means the same as in quotes, wherever it can stand."""
    written = """
    {homeserver: "http://hs", user_id: "@bot:hs.test", password: pw,
     threads: off, ack_reactions: off, rooms: {"!r:hs.test": {policy: off, threads: off}}}
    """
    config = MatrixConfig(**yaml.safe_load(written))

    assert (config.threads, config.ack_reactions) == ("off", False)
    assert config.rooms["!r:hs.test"].policy == config.rooms["!r:hs.test"].threads == "off"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rooms": {"team": {}}}, "neither the id of a room"),
        ({"rooms": {"#team": {}}}, "neither the id of a room"),
        ({"rooms": {"!r:hs.test": {"policy": "allowlist"}}}, "allow_from that says whose"),
        ({"rooms": {"!r:hs.test": {"allow_from": ["alice"]}}}, "not a Matrix id"),
        ({"ignore_senders": ["irc_*"]}, "not a pattern"),
        ({"threads": "sometimes"}, "off"),
        ({"streaming": {"max_edits": 1000}}, "60"),
    ],
)
def test_mistakes_about_rooms_are_told(changes, said):
    """Each names what is wrong and what would be right."""
    with pytest.raises(ValidationError, match=said):
        MatrixConfig(homeserver="http://hs", user_id="@bot:hs.test", password="pw", **changes)


def test_who_is_named_by_a_list():
    """An id, everybody at a server, everybody; nothing that only looks similar."""
    assert names_person(("@ann:hs.test",), "@ann:hs.test")
    assert names_person(("@*:hs.test",), "@ann:hs.test")
    assert names_person(("*",), "@ann:hs.test")
    assert not names_person(("@*:hs.test", "@ann:hs.test"), "@ann:hs.test.evil")
    assert not names_person((), "@ann:hs.test")


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, False),
        ({"group_policy": "open"}, True),
        ({"rooms": {"!a:hs.test": {"policy": "open"}}}, True),
        ({"rooms": {"!a:hs.test": {"policy": "mention"}}}, False),
    ],
)
def test_that_every_message_costs_a_model_call_is_said(settings, warned):
    """Of the whole account or of a single room."""
    config = MatrixConfig(homeserver="http://hs", user_id="@bot:hs.test", password="pw", **settings)
    assert any("model call" in one for one in config.warnings) is warned
