"""What the configuration says about itself: texts, the example, the JSON Schema; complete, current, and true."""

from __future__ import annotations

import re

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from gateway.errors import ConfigInvalid
from gateway.settings import Settings, load_settings
from gateway.settings.descriptions import nested_model, plain_type, section_text, setting_text
from gateway.settings.example import EXAMPLE, example_text
from gateway.settings.json_schema import config_schema
from gateway.settings.source import read_source
from tests.unit.gateway.cli.test_config import CONFIG, ENVIRON


def is_documented(model: type[BaseModel], name: str) -> bool:
    """Whether a person who reads the texts learns of this setting: its own, its section's, or its model's."""
    inner = nested_model(model.model_fields[name].annotation)
    by_section = any(
        f"``{name}" in section_text(owner)
        for owner in model.__mro__
        if issubclass(owner, BaseModel) and owner is not BaseModel
    )
    return bool(setting_text(model, name)) or by_section or bool(inner and section_text(inner))


STALE = "the settings have changed: run python -m gateway.cli.make_pages"


def uncommented(text):
    """What a person does who takes the sign before each setting away."""
    return re.sub(r"(?m)^( *)#(?=[^ #\n])", r"\1", text)


def models():
    found, waiting = set(), [Settings]
    while waiting:
        kind = plain_type(waiting.pop())
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind not in found:
                found.add(kind)
                waiting += [field.annotation for field in kind.model_fields.values()]
        else:
            waiting += getattr(kind, "__args__", ())
    return found


class TestTexts:
    def test_every_setting_is_told(self):
        """No setting without a word about it: its own, its section's, or in its section's text."""
        assert len(models()) > 25
        untold = [f"{model.__name__}.{name}" for model in models() for name in model.model_fields
                  if not is_documented(model, name)]  # fmt: skip
        assert untold == []

    def test_an_untold_setting_is_noticed(self):
        """The control; and texts of parents count, those of other settings do not."""

        class Base(BaseModel):
            told: int = 1
            """A word."""

        class UnattendedDialogue(Base):
            """A section that speaks of ``spoken`` only."""

            spoken: int = 1
            silent: int = 1

        assert [is_documented(UnattendedDialogue, name) for name in ("told", "spoken", "silent")] == [
            True,
            True,
            False,
        ]
        assert setting_text(UnattendedDialogue, "told") == "A word."
        assert section_text(Base) == ""


class TestExample:
    def test_the_kept_file_is_current(self):
        """It is what would be made now; another text is noticed."""
        assert EXAMPLE.read_text(encoding="utf-8") == example_text(), STALE
        assert example_text() != example_text().replace("enabled", "enabld")

    def test_it_loads_and_changes_nothing(self, tmp_path):
        """As it is, only what stands there as an example differs from no file at all."""
        settings = load_settings(EXAMPLE, environ={})
        assert settings.channels.enabled() == {}
        assert settings.llm == Settings().llm
        assert settings.gateway == Settings().gateway
        assert settings.agents == Settings().agents

    def test_it_loads_without_its_signs(self, tmp_path):
        """Every setting behind a sign is one that exists, in its place, with its default."""
        path = tmp_path / "all.yaml"
        path.write_text(uncommented(example_text()))
        settings = load_settings(path, environ={})
        assert settings.agents == Settings().agents
        assert settings.llm.limits == Settings().llm.limits
        assert settings.gateway.log == Settings().gateway.log
        assert settings.gateway.http.listen == "127.0.0.1:8811"
        matrix, _ = settings.channels.matrix, settings.channels.email
        assert (matrix.threads, matrix.ack_reactions, set(matrix.rooms)) == (
            "follow",
            False,
            {"#name:example.org"},
        )

    def test_a_wrong_name_behind_a_sign_would_be_noticed(self, tmp_path):
        """The control of the test above."""
        path = tmp_path / "all.yaml"
        path.write_text(uncommented(example_text()).replace("max_edits:", "max_edit:"))
        with pytest.raises(ConfigInvalid, match='did you mean "max_edits"'):
            load_settings(path, environ={})

    def test_every_setting_stands_in_it(self):
        """Also those of lists of sections."""
        names = set(re.findall(r"([a-z0-9_]+):", example_text()))
        wanted = {name for model in models() for name in model.model_fields} - {"name"}
        assert wanted - names == set()


@pytest.fixture(scope="module")
def schema():
    found = config_schema()
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    return Draft202012Validator(found)


class TestSchema:
    def test_it_is_closed_and_told(self, schema):
        """No object takes keys that nobody knows, and every section says what it is."""
        for name, part in schema.schema["$defs"].items():
            if part.get("type") == "object":
                assert part["additionalProperties"] is False, name
                assert part.get("description"), name
        assert schema.schema["additionalProperties"] is False

    @pytest.mark.parametrize(
        "text",
        [
            "",
            CONFIG,
            pytest.param(example_text, id="the example"),
            pytest.param(lambda: uncommented(example_text()), id="the example without its signs"),
            "agents: {consolidation_threshold: '7', keep_recent_ratio: '0.5', restrict_to_workspace: 'yes'}",
            "agents: {heartbeat: {watch: [{command: df -h}, {command: [df]}, {due: true}]}}",
            "owner: {aliases: [{channel: matrix, address: '@a:hs.test'}]}",
            "gateway: {log: {level: '${LEVEL}'}, max_concurrent_turns: '${N}'}",
            "channels: {matrix: [{homeserver: http://h.test, user_id: '@b:h.test', password: p, threads: off}]}",
        ],
    )  # fmt: skip
    def test_it_accepts_what_the_loader_accepts(self, schema, text, tmp_path):
        """Whole files, numbers in quotes, references in the place of anything, one account or a list."""
        (tmp_path / "pw").write_text("x")
        path = tmp_path / "c.yaml"
        path.write_text(text if isinstance(text, str) else text())
        load_settings(path, environ={**ENVIRON, "LEVEL": "debug", "N": "3"})
        unresolved = read_source(path, {name: f"${{{name}}}" for name in (*ENVIRON, "LEVEL", "N")}).data
        assert list(schema.iter_errors(unresolved)) == []

    @pytest.mark.parametrize(
        "text",
        [
            "agnts: {}",
            "agents: {heartbeat: {intervall: 3}}",
            "gateway: {max_concurrent_turns: 0}",
            "gateway: {max_concurrent_turns: many}",
            "gateway: {log: {level: loud}}",
            "owner: {aliases: '@a:hs.test'}",
            "owner: {aliases: [{channel: matrix}]}",
            "channels: {matrix: {user_id: '@b:h.test', password: p}}",
            "channels: {matrix: [{homeserver: http://h.test, user_id: '@b:h.test', pasword: p}]}",
            "llm: {models: {m: {provider: p, model: x, max_tokens: 0}}}",
        ],
    )
    def test_it_refuses_what_the_loader_refuses(self, schema, text, tmp_path):
        """Unknown keys at every depth, wrong kinds, values outside of their limits, what is missing."""
        path = tmp_path / "c.yaml"
        path.write_text(text)
        with pytest.raises(ConfigInvalid):
            load_settings(path, environ={})
        assert list(schema.iter_errors(read_source(path, {}).data)) != []
