"""Every setting that holds a secret is masked where a configuration is shown line by line, also a broken one."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from gateway.observability.redaction import Redactor
from gateway.settings import Settings
from gateway.settings.last_good import mask_lines
from tests.rows import rows

SECRET = "hunter2hunter2"


def secret_fields(model: Any, known: set[Any]) -> Iterator[str]:
    for part in typing.get_args(model):
        yield from secret_fields(part, known)
    if isinstance(model, type) and issubclass(model, BaseModel) and model not in known:
        known.add(model)
        for name, field in model.model_fields.items():
            if "SecretStr" in str(field.annotation):
                yield name
            yield from secret_fields(field.annotation, known)


NAMES = sorted(set(secret_fields(Settings, set())) - {"store"})


@rows("name", [*NAMES, "API_KEY"])
@rows("text", ["  - {}: {}", "  x: {{y: 1, {}: {}}}", '"{}": "{}"', "{}:\n    A: {}"])
def test_no_secret_is_shown(name: str, text: str) -> None:
    assert SECRET not in "\n".join(mask_lines(text.format(name, SECRET).splitlines(), Redactor([])))


def test_the_database_is_shown_without_its_password() -> None:
    line = f"  store: postgresql://me:{SECRET}@db.example/squidbot"
    assert SECRET not in mask_lines([line], Redactor([]))[0]


def test_other_lines_stay() -> None:
    """The control."""
    lines = ["gateway:", "  http: {listen: 127.0.0.1:8811}", "  keep_days: 3", "llm: {model: key-1}"]
    assert mask_lines(lines, Redactor([])) == lines
