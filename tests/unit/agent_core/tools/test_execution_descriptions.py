"""What people read of a call: no marks of a program, whatever the model gave."""

from __future__ import annotations

import pytest

from agent_core.prompt import fence, without_tags
from agent_core.tools.effects import Effect
from agent_core.tools.execution import call_in_words, effect_in_words


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "schedule"),
        ({"action": "add", "max_runs": 3}, "schedule: action add, max runs 3"),
        ({"to": ["a@b", "c@d"], "loud": True}, "schedule: to (a@b, c@d), loud yes"),
        ({"form": {"city": None, "days": [1, 2]}}, "schedule: form (city nothing, days (1, 2))"),
    ],
)
def test_a_call(arguments, told):
    assert call_in_words("schedule", arguments) == told


def test_every_effect_has_words_of_its_own():
    told = [effect_in_words(effect.value) for effect in Effect]
    assert len({*told}) == len(told)
    assert not any("_" in each or each == effect for each, effect in zip(told, Effect, strict=True))
    assert effect_in_words("teleport") == "teleport"


def test_a_result_is_shown_without_its_tags():
    """Also where it was cut; what somebody wrote in angle brackets stays."""
    assert without_tags(fence("web_page", "https://a.test\nTrains <late>")) == "https://a.test\nTrains <late>"
    assert without_tags("note <web_page> https://a.test Tra…") == "note https://a.test Tra…"
