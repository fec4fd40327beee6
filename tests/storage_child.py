"""Storage in a process of its own, for limits that would hit the whole test run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def in_child(code: str, home: Path) -> str:
    """Run code in a process of its own and give what it printed."""
    prologue = """
        import os, resource, sys, anyio
        from pathlib import Path
        from agent_core.errors import StorageUnavailable
        from agent_core.models import MemoryScope, Message, ScopeKind
        from agent_core.storage import JsonlMemory
        from tests.clock import ManualClock
        home = Path(sys.argv[1])
        memory = JsonlMemory(home, clock=ManualClock())
        owner = MemoryScope(ScopeKind.OWNER)
        def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prologue) + textwrap.dedent(code), str(home)],
        capture_output=True,
        text=True,
        timeout=25,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
