"""The keeper: a tiny process between us and a server, which never lets the server outlive us.

Run as a script: `python -I -S keeper.py [--remove FOLDER] -- COMMAND...`. It starts the command in a
process group of its own, prints the group's id, and then waits for one of two things:

* its standard input ends: whoever started us is gone, even by SIGKILL. Kill the group, remove the scratch
  folder, go away;
* the command ends. Kill what is left of its group, wait until every process is really gone (so that the
  ports are free again), and exit with the command's code.

Why not only PR_SET_PDEATHSIG in the server? The kernel sends that signal when the *thread* that forked
dies, and servers are started from worker threads that come and go; besides, it exists on Linux only. A
pipe closes with the process, on every system. PDEATHSIG is still set, between the server and this keeper,
whose one forking thread lives as long as it does: so a killed keeper takes its server along. As child
subreaper (Linux) the keeper also inherits processes that tried to detach.

Imports nothing but the standard library: it runs without site-packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_LIMIT_S = 8.0


def main(arguments: list[str]) -> int:
    """Run the command until it ends or until our parent is gone."""
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    remove = Path(options[1]) if options[:1] == ["--remove"] else None
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        process_group=0,
        preexec_fn=_die_with_keeper,
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _kill_group(child.pid))
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    orphaned = threading.Event()
    threading.Thread(target=_watch_parent, args=(child.pid, orphaned), daemon=True).start()
    status = _wait_for(child.pid)
    _reap_rest(child.pid)
    if remove is not None and orphaned.is_set():
        shutil.rmtree(remove, ignore_errors=True)
    return status


def _watch_parent(group: int, orphaned: threading.Event) -> None:
    """Wait for the end of standard input, then end the command; the main thread does the rest."""
    while os.read(0, 4096):
        pass
    orphaned.set()
    _kill_group(group)


def _wait_for(pid: int) -> int:
    """Reap children, ours and adopted ones, until the command itself has ended."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reap_rest(group: int) -> None:
    """Kill and reap whatever the command left behind."""
    deadline = time.monotonic() + REAP_LIMIT_S
    while time.monotonic() < deadline:
        _kill_group(group)
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    """Adopted processes, where the system can list them."""
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in listing.read_text().split()]
    except OSError:
        return []


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _die_with_keeper() -> None:
    """Between fork and exec: ask for SIGKILL when the keeper dies, unless it is dead already."""
    keeper = os.getppid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
