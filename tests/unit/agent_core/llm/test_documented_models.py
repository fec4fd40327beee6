"""The examples of the pages about models are complete: each can be built, and what it costs is known."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec, check_references
from agent_core.llm.ollama_client import OllamaClient
from agent_core.llm.providers import _PROVIDERS
from tests.clock import ManualClock
from tests.rows import rows

DOCS = Path(__file__).parents[4] / "docs"
PAGE = "".join((DOCS / f"{name}.md").read_text() for name in ("ollama", "models", "providers"))
BLOCKS = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if block.startswith("llm:")]
ALIASES = {
    "together": "together_ai",
    "fireworks": "fireworks_ai",
    "ollama_chat": "ollama",
    "hosted_vllm": "vllm",
}


def specs() -> list[LLMSpec]:
    return [LLMSpec.model_validate(yaml.safe_load(block)["llm"]) for block in BLOCKS]


def test_each_provider_has_one() -> None:
    """Those of the built-in clients, and two that need litellm."""
    shown = {model.model.partition("/")[0] for spec in specs() for model in spec.models.values()}
    assert shown >= {ALIASES.get(name, name) for name in _PROVIDERS} | {"anthropic", "bedrock", "vertex_ai"}


PEOPLE_USE = (
    *(
        "OpenRouter",
        "Ollama",
        "Anthropic",
        "OpenAI",
        "DeepSeek",
        "Mistral",
        "Groq",
        "Gemini",
        "xAI",
        "Moonshot",
    ),
    *("Z.AI", "DashScope", "llama.cpp", "vLLM", "LM Studio"),
)


@rows("name", PEOPLE_USE)
def test_people_find_theirs_by_its_name(name: str) -> None:
    """In front of its example; the two that most have come first."""
    example = rf"(\*\*{re.escape(name)}[^*\n]*\*\*[^`]*(`[^`]+`[^`]*)*?|## {re.escape(name)}[^\n]*\n\n)```yaml\nllm:"
    assert re.search(example, PAGE)
    assert PAGE.index("## Ollama") < PAGE.index("## OpenRouter") < PAGE.index("## Providers")


@rows("spec", specs(), ids=lambda spec: next(iter(spec.models.values())).model)
def test_it_can_be_built(spec: LLMSpec) -> None:
    """With a window of its own and a known price; litellm is needed only where the page says so."""
    models = build_models(spec, ManualClock())

    assert check_references(spec) == []
    assert models.pool().models
    for model in spec.models.values():
        assert "max_context_tokens" in model.model_fields_set or model.model.startswith("ollama/")
        assert spec.has_price(model) or model.model.startswith("ollama/")
        assert spec.is_plain(model) is (model.model.partition("/")[0] not in ("bedrock", "vertex_ai"))


def test_ollama_comes_first_with_the_window_that_it_says() -> None:
    """The example's window is what is asked for."""
    [client] = build_models(specs()[0], ManualClock()).pool().models
    assert isinstance(client, OllamaClient)
    assert client.window == 16_384
