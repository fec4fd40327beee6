"""The names of files that are written and gone do not stay with the daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]

_INTERNED = """
import sys
from pathlib import Path
from gateway.system.home import intern_no_path_names
if sys.argv[1] == "asked":
    assert intern_no_path_names() == (sys.version_info < (3, 14))
    assert not intern_no_path_names()
interned = 0
for number in range(100):
    path = Path("/home") / f"session-{number}" / "summary.md"
    assert str(path) == f"/home/session-{number}/summary.md"
    part = path.parts[2]
    interned += sys.intern(f"session-{number}") is part  # the first equal string that is interned is what it returns
print(interned)
assert list(Path(sys.argv[2]).glob("test_home_path_n*s.py")) and Path(sys.argv[2]).samefile(sys.argv[2])
"""


def interned(how: str) -> int:
    """Of a hundred names of folders, so many are interned by making paths of them, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERNED, how, str(Path(__file__).parent)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return int(done.stdout)


def test_no_name_is_interned():
    """Paths say and do what they did, and none of their names is in the table of interned strings."""
    assert interned("asked") == 0


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pathlib interns nothing from 3.14 on")
def test_left_alone_every_name_is():
    """The control."""
    assert interned("alone") == 100


def test_the_daemon_asks_for_it():
    """It does so before it reads its home."""
    code = (
        "import sys, contextlib\nfrom gateway.cli import fast_path\n"
        "with contextlib.suppress(BaseException): fast_path.run(home='/nowhere/at/all')\n"
        "from gateway.system.home import intern_no_path_names\nprint(intern_no_path_names())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
