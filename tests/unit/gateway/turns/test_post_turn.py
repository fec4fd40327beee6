"""How the settings become a memory manager."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent_core.llm.factory import build_models
from agent_core.models import Message
from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
from gateway.app.agent import memory_manager
from gateway.settings import Settings
from tests.clock import ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory


async def system_text(always: tuple[str, ...], tmp_path: Path) -> tuple[str, list[dict[str, object]]]:
    settings = Settings.model_validate({"skills": {"always": always}})
    skills = SkillsLoader(BUNDLED_SKILLS, tmp_path)
    models = build_models(settings.llm, ManualClock())
    with capture_logs() as logs:
        manager = memory_manager(settings, InMemoryMemory(), skills, models)
    built: list[Message] = await manager.build_messages("terminal/local", "sys", "hello")
    return built[0].content, [dict(line) for line in logs if str(line["event"]).startswith("skill.")]


@pytest.mark.parametrize("always", [(), ("memory",)])
async def test_a_skill_can_be_forced_into_every_prompt(always: tuple[str, ...], tmp_path: Path) -> None:
    """With `skills.always` the text of a skill that says ``always: false`` is there; without, only its line."""
    text, logs = await system_text(always, tmp_path)
    assert ("## Skill: memory" in text) == bool(always)
    assert '<skill name="memory"' in text
    assert logs == []


async def test_a_skill_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A misspelt name, or a skill that this machine cannot have, is a warning at the start and not a mystery."""
    (tmp_path / "rocket").mkdir()
    (tmp_path / "rocket" / "SKILL.md").write_text(
        "---\nname: rocket\ndescription: x\nrequires: {bins: [no-such-program-here]}\n---\n\nfly"
    )
    text, logs = await system_text(("memmory", "rocket"), tmp_path)
    assert "## Skill" not in text
    assert [(line["event"], line["skill"]) for line in logs] == [
        ("skill.unknown", "memmory"),
        ("skill.unavailable", "rocket"),
    ]
