"""Encoders that answer as `vectors_child` does, without its weights."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from agent_core.storage.search_index import vectors

MEANINGS = {"cat": "1", "pet": "1", "haustier": "1", "train": "2", "railway": "2"}
"""The words that `ScriptedEncoder` knows; those with the same number mean the same."""


class ScriptedEncoder:
    """A vector is the set of the meanings of a text's words, and those that share most are the nearest."""

    pid = 1
    most = 1_000

    def __init__(self, *_: Any, **__: Any) -> None:
        self.scopes: dict[str, list[tuple[Any, int, frozenset[str]]]] = {}

    async def start(self) -> None:
        """It is there."""

    async def aclose(self) -> None:
        """It is there."""

    @staticmethod
    def meanings(text: str) -> set[str]:
        """What the words of a text mean."""
        return {MEANINGS[word] for each in text.split() if (word := each.strip(".,?").lower()) in MEANINGS}

    async def ask_text(self, request: Mapping[str, Any], **_: Any) -> str:
        if "encode" in request:
            print("encoding", flush=True)
            told = [json.dumps(sorted(self.meanings(text))).encode() for text in request["encode"]]
            return json.dumps([base64.b64encode(each).decode() for each in told])
        held = self.scopes.setdefault(request["scope"], [])
        if "add" in request:
            if not request["after"]:
                held.clear()
            held += [
                (line, ms, frozenset(json.loads(base64.b64decode(raw)))) for line, ms, raw in request["add"]
            ]
            return "true" if len(held) < self.most else '"full"'
        wanted = self.meanings(request["search"])
        near = [(len(wanted & said), ms, line) for line, ms, said in held if ms >= request["since"]]
        return json.dumps(
            [(line, shared, 0) for shared, _, line in sorted(near, reverse=True) if shared][:50]
        )


class BeginningsEncoder(ScriptedEncoder):
    """Words mean the same that begin alike: it has something to say about every text."""

    @staticmethod
    def meanings(text: str) -> set[str]:
        return {word[:3].lower() for word in text.split()}


class SlowEncoder(ScriptedEncoder):
    """It starts only when it may."""

    may_start = anyio.Event()
    pid = None  # type: ignore[assignment]

    async def start(self) -> None:
        await self.may_start.wait()
        self.pid = 1

    async def ask_text(self, request: Mapping[str, Any], **more: Any) -> str:
        await self.start()
        return await super().ask_text(request, **more)


def use_encoder(patch: pytest.MonkeyPatch, encoder: type[ScriptedEncoder] = ScriptedEncoder) -> None:
    """Whatever searches from now on has this encoder."""
    patch.setattr(vectors, "ChildProcess", encoder)
    patch.setattr(vectors, "missing_for_vectors", str)
