"""The people of a configuration: what is wrong with them is said at their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings

GOOD = """
owner: {aliases: ["@ann:example.org"]}
channels:
  matrix:
    homeserver: https://example.org
    user_id: "@bot:example.org"
    password: secret
    rooms: {"!a:example.org": {language: de, persona: Be brief., pool: main, tools: [web_search]}}
llm: {models: {small: {model: demo/small}}, pools: {main: [small]}, default_pool: main}
mcp: {servers: {home: {command: x}}}
people:
  bob: {addresses: ["@bob:example.org", bob@example.org], role: guest, tools: ["home__*", web_search]}
  others: {role: guest, language: de, share: 0.1, pool: main}
"""


def problems_of(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigInvalid) as refused:
        load_settings(path)
    return str(refused.value)


def test_a_good_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "squidbot.yaml").write_text(GOOD)
    assert set(load_settings(tmp_path / "squidbot.yaml").people) == {"bob", "others"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("bob@example.org]", "bob]", "people.bob.addresses[1]: 'bob' is no address"),
        ("bob@example.org]", '"@ann:example.org"]', "'@ann:example.org' is one of owner.aliases"),
        ("others: {", 'cid: {addresses: ["@bob:example.org"]}\n  others: {', "is an address of bob already"),
        ("others: {role: guest,", "others: {role: owner,", "not everybody can be an owner"),
        ("others: {", 'others: {addresses: ["@x:y.org"], ', "others are all who have no entry"),
        ('addresses: ["@bob:example.org", bob@example.org], ', "", "without an address nobody is meant"),
        ("share: 0.1, pool: main", "pool: nosuch", "people.others.pool"),
        ("pool: main, tools", "pool: nosuch, tools", "no pool"),
        ('"home__*", web_search', "web_serch", "there is no tool 'web_serch'"),
        ("tools: [web_search]}}", "tools: [nosuch]}}", "there is no tool 'nosuch'"),
        ("bob: {", "Bob: {", "people.Bob"),
        ("role: guest, language", "role: boss, language", "people.others.role"),
        ("language: de, share", "language: german, share", "'german' is no language; write its two letters"),
        ("{language: de", "{language: Deutsch", "'Deutsch' is no language; write its two letters"),
        ("\nowner:", "\nlanguage: german\nowner:", "language: 'german' is no language"),
        ("language: de, share: 0.1", "share: 2", "people.others.share"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in GOOD
    assert said in problems_of(tmp_path / "squidbot.yaml", GOOD.replace(before, after, 1))
