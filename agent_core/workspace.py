"""The names directly in the workspace that prompts are built from: a change there lasts. Pure."""

from __future__ import annotations

import unicodedata

PROMPT_FILES = ("HEARTBEAT.md", "MEMORY.md", "PERSONA.md")
"""The files among them."""
PROMPT_NAMES = frozenset({"skills", *(name.lower() for name in PROMPT_FILES)})
"""As `is_of_prompt` compares them."""


def is_of_prompt(name: str) -> bool:
    """Whether prompts are built from the file with this name, also on a disk that ignores case."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return plain in PROMPT_NAMES
