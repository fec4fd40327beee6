"""
Skills: instructions in SKILL.md files that a model reads when a task needs them. ``document`` reads one file,
``loader`` finds them; the folders beside these modules are the bundled ones.
"""

from agent_core.prompt import build_skills_xml
from agent_core.skills.skill_loader import BUNDLED_SKILLS, SkillsLoader

__all__ = ["BUNDLED_SKILLS", "SkillsLoader", "build_skills_xml"]
