"""The configurations in docs/models.md are complete: each can be copied as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from agent_core.llm.config import LLMSpec, check_references
from agent_core.llm.factory import build_models
from agent_core.llm.ollama_client import OllamaClient
from tests.clock import ManualClock

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
EXAMPLES = [
    yaml.safe_load(text)["llm"] for text in re.findall(r"```yaml\n(llm:.*?)```", PAGE.read_text(), re.DOTALL)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: "-".join(one["models"]))
def test_every_example_is_complete(example):
    """All references are there, and its clients can be built."""
    spec = LLMSpec.model_validate(example)
    assert check_references(spec) == []
    assert build_models(spec, ManualClock()).pool().models


def test_ollama_comes_first_with_the_window_that_it_says():
    """The example's window is what is asked for."""
    [client] = build_models(LLMSpec.model_validate(EXAMPLES[0]), ManualClock()).pool().models
    assert isinstance(client, OllamaClient)
    assert client.window == 16_384
