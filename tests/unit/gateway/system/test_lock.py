"""What is installed on a small machine: nothing of it has to be compiled there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
PYTHONS = (311, 312, 313)
PURE = {"atomicwrites"}
"""Published as source alone, without a line to compile; nio asks for it."""


def locked() -> dict[str, dict[str, Any]]:
    """Every package that `squidbot run` can load, as the lock has it."""
    packages: dict[str, dict[str, Any]] = {}
    for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        # A package may be there in several versions, each for some Pythons.
        packages.setdefault(one["name"], {**one, "wheels": []})["wheels"] += one.get("wheels", [])
    found: dict[str, dict[str, Any]] = {}
    wanted = ["squidbot-gateway"]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found[name] = one = packages[name]
        more = [one.get("dependencies", []), *one.get("optional-dependencies", {}).values()]
        wanted += [
            each["name"]
            for group in more
            for each in group
            if each.get("marker") != "sys_platform == 'win32'"
        ]
    del found["squidbot-gateway"]
    return found


def fits(wheel: str, python: int, machine: str) -> bool:
    """Whether a wheel is for this Python on Linux on this machine (PEP 425; glibc only)."""
    interpreters, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    if platform != "any" and not ("manylinux" in platform and platform.endswith(machine)):
        return False
    return any(
        tag in (f"cp{python}", "py3")
        or (abi == "abi3" and tag.startswith("cp3") and int(tag.removeprefix("cp")) <= python)
        for tag in interpreters.split(".")
    )


def without_wheel(machine: str) -> set[str]:
    """The packages that would have to be built on such a machine, for one of our Pythons at least."""
    return {
        name
        for name, one in locked().items()
        for python in PYTHONS
        if not any(fits(wheel["url"].rpartition("/")[2], python, machine) for wheel in one.get("wheels", []))
    }


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_compiled_library_comes_as_a_wheel(machine: str) -> None:
    """For amd64 and arm64 and each Python: no compiler is needed for the image or for `pip install`."""
    assert len(locked()) > 50
    assert without_wheel(machine) == PURE


def test_a_machine_without_wheels_would_be_seen() -> None:
    """The control: on another kind of processor what is compiled is missing, what is not is there."""
    missing = without_wheel("mips64")
    assert {"pydantic-core", "vodozemac", "orjson"} <= missing
    assert "aiosmtplib" not in missing
