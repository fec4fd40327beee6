"""From a description to pools, and what is wrong with a description."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agent_core.llm.anthropic_client import AnthropicClient
from agent_core.llm.demo.demo_model import DemoModel, EchoModel
from agent_core.llm.factory import build_models
from agent_core.llm.litellm.litellm_client import LiteLLMClient
from agent_core.llm.model_config import LLMSpec, ModelSpec, ProviderSpec, check_references
from agent_core.llm.openai_client import OpenAIClient
from agent_core.models import Message
from tests.clock import ManualClock


def spec(**changes):
    whole = {
        "default_pool": "main",
        "providers": {
            "local": {"api_base": "http://127.0.0.1:9999/v1", "api_key": "secret-key"},
            "cloud": {"api_key": "secret-key"},
        },
        "models": {
            "small": {
                "provider": "local",
                "model": "openai/some",
                "max_tokens": 1024,
                "max_context_tokens": 8000,
            },
            "large": {"provider": "cloud", "model": "bedrock/some"},
        },
        "pools": {"main": ["small", "large"], "cheap": ["small"]},
    }
    return LLMSpec.model_validate(whole | changes)


def clients(models, pool):
    return [type(member.llm) for member in models.pools[pool]._members]


class TestReferences:
    def test_a_sound_description(self):
        """Nothing to complain about."""
        assert (
            check_references(spec(), {"agents.consolidation_pool": "", "agents.heartbeat.pool": "cheap"})
            == []
        )

    def test_everything_wrong_is_named_at_once(self):
        """Each wrong key is named with its path, and a near miss with what was probably meant."""
        broken = spec(
            default_pool="mian",
            models={
                "small": {"provider": "locla", "model": "openai/some"},
                "bare": {"model": "openai/some"},
                "plain": {"provider": "cloud", "model": "anthropic/some", "client": "openai"},
            },
            pools={"main": ["small", "smal", "small"], "none": []},
        )
        problems = dict(check_references(broken, {"agents.heartbeat.pool": "heart"}))

        assert set(problems) == {
            "llm.models.small.provider",
            "llm.models.bare.provider",
            "llm.models.plain.client",
            "llm.pools.main[1]",
            "llm.pools.main[2]",
            "llm.pools.none",
            "llm.default_pool",
            "agents.heartbeat.pool",
        }
        assert "did you mean 'local'" in problems["llm.models.small.provider"]
        assert "did you mean 'small'" in problems["llm.pools.main[1]"]
        assert "known: main, none" in problems["agents.heartbeat.pool"]
        assert "llm.providers.cloud.api_base" in problems["llm.models.plain.client"]

    @pytest.mark.parametrize(
        ("model", "refused"),
        [
            ({"model": "anthropic/c", "temperature": 0.2, "reasoning_effort": "low"}, True),
            ({"model": "anthropic/c", "temperature": 0.2, "extra": {"thinking": {"type": "adaptive"}}}, True),
            ({"model": "openai/gpt-5", "temperature": 0, "reasoning_effort": "high"}, True),
            ({"model": "anthropic/c", "temperature": 1, "reasoning_effort": "low"}, False),
            ({"model": "anthropic/c", "temperature": 0.2, "reasoning_effort": "none"}, False),
            ({"model": "anthropic/c", "temperature": 0.2}, False),
            (
                {"model": "openai/qwen", "provider": "local", "temperature": 0, "reasoning_effort": "low"},
                False,
            ),
            ({"model": "mistral/m", "temperature": 0.2, "reasoning_effort": "high"}, False),
        ],
    )
    def test_what_a_provider_refuses_together(self, model, refused):
        """A model that thinks has one temperature at Anthropic and OpenAI; others take both."""
        one = spec(models={"one": {"provider": "cloud", **model}}, pools={"main": ["one"]})

        assert [path for path, _ in check_references(one)] == ["llm.models.one.temperature"] * refused

    def test_nothing_configured_is_fine(self):
        """An empty description has no wrong reference; somebody else decides what takes its place."""
        assert check_references(LLMSpec()) == []

    def test_a_broken_description_is_not_built(self):
        """Building refuses what checking complains about."""
        with pytest.raises(ValueError, match=r"llm\.pools\.main\[0\]"):
            build_models(spec(pools={"main": ["nobody"]}), ManualClock())

    @pytest.mark.parametrize(
        ("model", "data"),
        [
            (ProviderSpec, {"api_base": "127.0.0.1:9999"}),
            (ProviderSpec, {"api_bse": "http://x"}),
            (ModelSpec, {"model": ""}),
            (ModelSpec, {"model": "m", "client": "curl"}),
            (ModelSpec, {"model": "m", "max_tokens": 0}),
        ],
    )
    def test_wrong_values(self, model, data):
        """An address without scheme, unknown keys and impossible values are refused."""
        with pytest.raises(ValidationError):
            model.model_validate(data)

    def test_a_key_is_not_shown(self):
        """The description can be logged."""
        assert "secret-key" not in repr(spec())


class TestBuild:
    def test_the_plain_client_where_it_will_do(self):
        """``auto`` takes the plain client for a server of one's own and litellm for a protocol that nobody else speaks."""
        models = build_models(spec(), ManualClock())

        assert clients(models, "main") == [OpenAIClient, LiteLLMClient]
        assert models.uses_litellm
        assert [models.context_tokens(pool) for pool in ("main", "cheap")] == [8000, 8000]

    def test_anthropic_is_asked_in_its_own_protocol(self):
        """No litellm is needed for it, whatever the name of the model."""
        large = {"provider": "cloud", "model": "anthropic/some"}
        models = build_models(spec(models={"large": large}, pools={"main": ["large"]}), ManualClock())

        assert clients(models, "main") == [AnthropicClient]
        assert not models.uses_litellm

    def test_the_choice_can_be_forced(self):
        """``client: litellm`` is obeyed."""
        small = {"provider": "local", "model": "openai/some", "client": "litellm"}
        models = build_models(spec(models={"small": small}, pools={"main": ["small"]}), ManualClock())

        assert clients(models, "main") == [LiteLLMClient]

    def test_pools_share_their_models(self):
        """A model in two pools is one client, and one in no pool is not built."""
        models = build_models(spec(pools={"main": ["small"], "cheap": ["small"]}), ManualClock())

        assert models.pools["main"]._members[0].llm is models.pools["cheap"]._members[0].llm
        assert not models.uses_litellm

    async def test_nothing_configured_is_the_demo_model(self):
        """An empty description gives a pool that talks, offline."""
        models = build_models(LLMSpec(), ManualClock())
        await models.warm_up()
        chunks = [c async for c in await models.pool().chat([Message(role="user", content="hello")], [])]

        assert clients(models, "main") == [DemoModel]
        assert "demo model" in "".join(c for c in chunks if isinstance(c, str))
        await models.aclose()

    def test_the_echo_model_by_name(self):
        """``demo/echo`` needs no provider."""
        models = build_models(
            spec(models={"e": {"model": "demo/echo"}}, pools={"main": ["e"]}), ManualClock()
        )

        assert clients(models, "main") == [EchoModel]

    def test_a_given_model_takes_the_place(self):
        """Tests can bring a model under the name of a configured one."""
        mine = EchoModel()
        models = build_models(spec(), ManualClock(), given={"small": mine})

        assert models.pool("cheap")._members[0].llm is mine

    def test_an_unknown_pool(self):
        """Asking for a pool that is not there is an error, never the default in silence."""
        with pytest.raises(KeyError):
            build_models(spec(), ManualClock()).pool("chepa")
