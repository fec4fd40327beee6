"""What squidbot is installed with may be passed on with a program under the GPL, version 3 or later."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FITTING = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "GPL-3.0-only", "GPL-3.0-or-later", "ISC", "LGPL-3.0-only",
    "LGPL-3.0-or-later", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense",
}  # fmt: skip
"""As the FSF's list of licences says of each."""
ALIASES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "internet systems consortium license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the mit license (mit)": "MIT",
}
BY_HAND = {
    "peewee": "MIT",  # its LICENSE file; the metadata says nothing
    "vodozemac": "MIT AND Apache-2.0",  # its LICENSE file, and that of the library in it
    "python-dateutil": "Apache-2.0",  # “dual license”: it or BSD
    "pystemmer": "MIT AND BSD-3-Clause",
    # CNRI's is for the part of CPython's `re` that it began with; litellm brings it, in a process of its own.
    "regex": "Apache-2.0",
}


def packages() -> set[str]:
    """The names of all that any extra installs."""
    locked = {each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found, next_ = set[str](), ["squidbot-gateway"]
    while next_:
        if (name := next_.pop()) not in found:
            found.add(name)
            extras = locked[name].get("optional-dependencies", {}).values()
            next_ += [
                one["name"]
                for one in (*locked[name].get("dependencies", ()), *(o for e in extras for o in e))
            ]
    return found - {"squidbot-gateway"}


def licence_of(name: str) -> str | None:
    """The licence as an SPDX expression; None if the package is not installed here."""
    if name in BY_HAND:
        return BY_HAND[name]
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    named = [
        each.rpartition(" :: ")[2] for each in about.get_all("Classifier", []) if each.startswith("License")
    ]
    said = about.get("License-Expression") or (about.get("License") or "").splitlines()[:1]
    first = said if isinstance(said, str) else "".join(said)
    return ALIASES.get(first.lower(), first) or " AND ".join(ALIASES.get(one.lower(), one) for one in named)


def is_fit(expression: str) -> bool:
    """Of an “or” one part is enough, of an “and” all are needed. Pure."""
    words = re.sub(r"[()]", " ", expression)
    return any(
        all(part.strip() in FITTING for part in either.split(" AND ")) for either in words.split(" OR ")
    ) or all(any(one.strip() in FITTING for one in part.split(" OR ")) for part in words.split(" AND "))


def unfit(names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        licence = licence_of(name)
        if licence is not None and not is_fit(licence):
            yield f"{name}: {licence}"


def test_each_licence_fits():
    assert list(unfit(packages())) == []


def test_nearly_all_were_looked_at():
    """What is not installed here is in extras with models, or for other systems."""
    unknown = {name for name in packages() if licence_of(name) is None}
    assert len(unknown) <= 20, unknown


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("MIT", True),
        ("GPL-2.0-only OR MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("GPL-2.0-only", False),
        ("MIT AND BUSL-1.1", False),
        ("", False),
    ],
)
def test_what_fits(expression, fits):
    """With the negative controls: a licence that does not, alone and beside another, and none at all."""
    assert is_fit(expression) is fits
