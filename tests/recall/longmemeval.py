"""
Reads the file of LongMemEval (Wu et al. 2024), for somebody who has it; it is not part of this repository.

The file is a JSON array of questions. Each has ``question``, ``question_type``, ``question_id`` (which ends in
``_abs`` if the history has no answer) and its own ``haystack_sessions``: conversations of turns with ``role``
and ``content``, of which those with the answer have ``has_answer``. Where no turn says so, as in some copies
of the file, every turn of the user in the conversations of ``answer_session_ids`` is the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recall.histories import FORMS, Asked, History


def read_longmemeval(path: Path) -> Iterator[History]:
    """Yield a history with one question for each question of the file."""
    for each in json.loads(path.read_text(encoding="utf-8")):
        yield _history(each)


def _history(question: dict[str, Any]) -> History:
    made = History("en")
    marked: list[int] = []
    of_user: list[int] = []
    names = question.get("haystack_session_ids") or [""] * len(question["haystack_sessions"])
    for name, session in zip(names, question["haystack_sessions"], strict=True):
        made.starts.append(len(made.messages))
        for turn in session:
            number = len(made.messages)
            if turn.get("has_answer"):
                marked.append(number)
            if turn["role"] == "user" and name in question.get("answer_session_ids", ()):
                of_user.append(number)
            made.messages.append((turn["role"], turn["content"]))
    evidence = frozenset(marked or of_user)
    unanswered = str(question["question_id"]).endswith("_abs") or not evidence
    kind = "nothing" if unanswered else str(question["question_type"])
    said = tuple(made.messages[number][1] for number in sorted(evidence))
    made.asked.append(Asked(kind, FORMS[0], question["question"], evidence, said))
    return made
