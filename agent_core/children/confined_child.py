"""
The runner between the daemon and a program: confines it, watches it, and ends all that it has started
(Linux). The order (`agent_core.children.order.order_of`) comes on stdin and the report goes to stdout, both
as `marshal`, which is built in. As subreaper (prctl(2)) it adopts orphans; at the program's end, a limit,
SIGTERM or the daemon's death it kills and reaps descendants until there are none. Two processes do that, so
that one survives the other's death.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` makes enums of it, which takes longer than all
import marshal
import resource
import select
import time
from posix import _exit

from agent_core.children import syscalls
from agent_core.children.process_tree import (
    descendants,
    end_all,
    enter_group,
    exceeds_memory,
    has_busy_thread,
    make_group,
    own_children,
    processor_time,
    remove_group,
    send_signal,
    threads_of,
    yield_resources,
)
from agent_core.children.removal import remove_folder
from agent_core.children.syscalls import read_all, read_frame, write_all, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any
else:
    import posix as os  # all that is needed here, without what `os` loads

_PDEATHSIG, _NO_NEW_PRIVS, _SECCOMP, _CAPBSET_DROP, _SECUREBITS, _SUBREAPER, _AMBIENT = (
    1,
    38,
    22,
    24,
    28,
    36,
    47,
)
_LAST_CAPABILITY = 63
_NO_ROOT_LOCKED = 0b1111
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPABILITIES = {"x86_64": (125, 126), "aarch64": (90, 91)}
"""capget, capset"""
_FILE_RIGHTS = 0b1100000000000111
"""Those that may be given on what is no folder: execute, write, read, cut, ioctl."""
_KIND, _FOLDER, _LINK = 0o170000, 0o040000, 0o120000
_CHECK_EVERY_S = 0.1
_PIECE = 65536
_MAX_WAITING = 64
_FILTER_HANDLE, _LISTENER_HANDLE = 60, 61
"""As in `agent_core.children.bubblewrap` and `agent_core.children.listener`."""
_MAX_ENTRIES = 200_000


class ChildStopped(BaseException):
    """SIGTERM has come."""


def stop_once(_number: int, _frame: object) -> None:
    """Handle SIGTERM: a second one changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise ChildStopped


def main(*, linked: bool = False) -> None:
    """
    Take an order, carry it out, report; never returns.

    ``linked``: the standard input ends with whoever gave the order, see
    `agent_core.children.external_runner`.
    """
    report: dict[str, Any] = {}
    order: dict[str, Any] = {}
    run: _Run | None = None
    try:
        signal.signal(signal.SIGTERM, stop_once)
        syscalls.prctl(_SUBREAPER, 1, 0, 0, 0)
        syscalls.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        order = marshal.loads(read_frame(0) if linked else read_all(0))  # noqa: S302 - the daemon wrote it
        report["network"] = os.readlink("/proc/self/ns/net")
        if linked or os.getppid() == order["parent"]:  # else it died before that could be noticed
            order["group"] = make_group(order["groups"], order["processes"])
            _guard(order)
            if order["listener"]:
                os.set_inheritable(order["listener"], False)
            if linked and order["connects"]:
                _give_listener(order["port"], order["network"])
            run = _Run(order, report)
            run.go()
    except ChildStopped:
        report["limit"] = "stopped"
    except BaseException as error:  # noqa: BLE001 - told to the daemon, which logs it
        report["error"] = f"{type(error).__name__}: {error}"[:500]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all(report)
        if run is not None:
            run.clean_up()
        if order.get("group"):
            remove_group(order["group"])
    write_all(1, marshal.dumps(report))
    _exit(0)


def _give_listener(port: int, daemon_network: str) -> None:
    """
    Listen on loopback in the runner's own network and pass the socket to the daemon through stdin.

    Raises OSError, RuntimeError in the daemon's network.
    """
    if os.readlink("/proc/self/ns/net") == daemon_network:
        raise RuntimeError("it has no network of its own")
    import _socket  # noqa: PLC0415 - takes longer than all else, and is rarely wanted

    made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    made.bind(("127.0.0.1", port))
    made.listen(_MAX_WAITING)
    out = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, os.dup(0))
    handle = made.fileno().to_bytes(4, "little")
    out.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handle)])
    out.close()
    made.close()


def _guard(order: dict[str, Any]) -> None:
    """Continue in a child while this process guards it as subreaper: it kills what is left behind."""
    guard = os.getpid()
    runner = os.fork()
    if runner == 0:
        syscalls.prctl(_SUBREAPER, 1, 0, 0, 0)
        syscalls.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != guard:
            raise ChildStopped
        return
    signal.signal(signal.SIGTERM, lambda _number, _frame: send_signal(signal.SIGTERM, [runner]))
    os.close(0)
    os.close(1)
    if order["listener"]:
        os.close(order["listener"])
    os.waitpid(runner, 0)
    end_all({})
    if order["private"]:
        remove_folder(order["private"])
    if order["group"]:
        remove_group(order["group"])
    _exit(0)


class _Run:
    """One program, from its start to the end of its output."""

    def __init__(self, order: dict[str, Any], report: dict[str, Any]) -> None:
        self._order = order
        self._report = report
        self._output = _Output(order["head"], order["tail"])
        self._private = str(order["private"])
        self._used: list[tuple[int, int]] = []
        self._still_looks = 0

    def go(self) -> None:
        order, report = self._order, self._report
        if order["groups"] and not order["group"]:
            report["error"] = "no control group for processes"
            return
        if self._private:
            os.mkdir(self._private, 0o700)
            if order["script"]:
                write_file(f"{self._private}/script", order["script"], os.O_CREAT | os.O_EXCL)
        disks = _Disks([*order["disks"], *([self._private] if self._private else [])], order)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        told, telling = os.pipe2(os.O_CLOEXEC)
        began = time.monotonic()
        program = os.fork()
        if program == 0:
            self._become(writing, telling)
        os.close(writing)
        os.close(telling)
        if order["listener"]:
            os.close(order["listener"])
        if trouble := read_all(told):
            report["error"] = trouble.decode("utf-8", "replace")
            os.waitpid(program, 0)
            return
        self._watch(program, reading, disks, began)
        report["seconds"] = time.monotonic() - began
        report.update(self._output.report())

    def _watch(self, program: int, reading: int, disks: _Disks, began: float) -> None:
        order, report = self._order, self._report
        os.set_blocking(reading, False)
        handle = os.pidfd_open(program)
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(handle, select.POLLIN)
        if order["linked"]:
            poll.register(0, select.POLLIN)
        limit, look_at = "", began + _CHECK_EVERY_S
        while not limit:
            left = min(look_at, began + order["seconds"]) - time.monotonic()
            ready = dict(poll.poll(1000 * max(0.001, left)))
            if reading in ready and not self._output.take(reading):
                poll.unregister(reading)
            if handle in ready:
                break
            limit = "stopped" if 0 in ready else self._limit(began)
            if not limit and time.monotonic() >= look_at:
                limit = disks.limit() or self._look(program)
                look_at = time.monotonic() + _CHECK_EVERY_S
        if limit:
            report["limit"] = limit
        else:
            # Its status first: what else is reaped meanwhile has nothing to say.
            code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
            report["signal" if code < 0 else "status"] = abs(code)
        end_all(report)
        give_up_at = time.monotonic() + 0.5
        while self._output.take(reading) and time.monotonic() < give_up_at:
            if not select.select([reading], [], [], 0.05)[0]:
                break
        os.close(handle)

    def _limit(self, began: float) -> str:
        """Return the name of an exceeded limit that needs no scan of the process tree, or ""."""
        if time.monotonic() - began >= self._order["seconds"]:
            return "time"
        return "output" if self._output.count > self._order["output"] else ""

    def _is_still(self, tree: list[int]) -> bool:
        """
        Return True if the tree has been idle for the allowed time.

        Idle time is counted in scans: on a busy machine both the tree and this process wait for a processor.
        """
        most = float(self._order["still"])
        if not most:
            return False
        used = processor_time(tree)
        moved = used != self._used or any(map(has_busy_thread, tree))
        self._used, self._still_looks = used, 0 if moved else self._still_looks + 1
        return most <= self._still_looks * _CHECK_EVERY_S

    def _look(self, program: int) -> str:
        """Scan the process tree and return the exceeded limit, or ""; ended orphans are reaped."""
        order, tree = self._order, descendants()
        if self._is_still(tree):
            return "still"
        for pid in own_children():
            if pid != program:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue
        if not order["memory"]:
            return ""
        most = order["processes"]
        if len(tree) > most > 0 and len(processor_time(tree)) > most:  # those that are still there
            return "processes"
        # Twice: of processes that end meanwhile the others seem to hold what they had together.
        memory = order["memory"]
        return "memory" if exceeds_memory(memory, tree) and exceeds_memory(memory, descendants()) else ""

    # ── in the child ──

    def _become(self, output: int, telling: int) -> None:
        """Give up everything and become the program; only in the forked child."""
        try:
            self._confine_self(output)
            order = self._order
            if order["attempts"]:
                from agent_core.children.proof import attempt_all  # noqa: PLC0415 - was loaded before

                os.close(telling)
                attempt_all(order["attempts"])
                _exit(0)
            _execute(order["words"], order["environment"])
        except BaseException as error:  # noqa: BLE001 - told to the runner
            name = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            write_all(telling, f"{type(error).__name__}: {name}".encode("utf-8", "replace"))
        _exit(127)

    def _confine_self(self, output: int) -> None:
        order = self._order
        os.setsid()
        runner = os.getppid()
        syscalls.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != runner:
            _exit(127)
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if order["attempts"]:
            import agent_core.children.proof  # noqa: F401, PLC0415 - while files of ours can be read
        given = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for number, handle in ((0, given), (1, output), (2, output)):
            os.dup2(handle, number)
        _close_others()
        if order["directory"]:
            os.chdir(order["directory"])
        if order["group"]:
            enter_group(order["group"])
        if order["confine"]:
            os.umask(0o077)  # with it +x is mode 700, the one that can be set by path
            yield_resources(order["machine"], order["nice"])
            _limit(order)
            if order["wrapped"]:
                _hand_over(order["filter"], order["listener"])
            else:
                confine(order)

    def clean_up(self) -> None:
        if self._private:
            remove_folder(self._private)


class _Output:
    """The head and the tail of what is said; the rest is counted."""

    def __init__(self, head: int, tail: int) -> None:
        self._most_head, self._most_tail = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self.count = 0

    def take(self, handle: int) -> bool:
        """Read one piece; false at the end."""
        try:
            piece = os.read(handle, _PIECE)
        except BlockingIOError:
            return True
        self.count += len(piece)
        room = self._most_head - len(self._head)
        self._head += piece[: max(0, room)]
        self._tail += piece[max(0, room) :]
        if len(self._tail) > self._most_tail + _PIECE:
            del self._tail[: len(self._tail) - self._most_tail]
        return bool(piece)

    def report(self) -> dict[str, Any]:
        tail = self._tail[max(0, len(self._tail) - self._most_tail) :]
        return {"head": bytes(self._head), "tail": bytes(tail), "bytes": self.count}


class _Disks:
    """
    Measures the free space that some folders' disks have lost since the start.

    Only past the limit, changed files and open nameless ones are counted.
    """

    def __init__(self, folders: list[str], order: dict[str, Any]) -> None:
        self._folders, self._bytes, self._files = folders, order["disk"], order["files"]
        self._began = time.time() - 1
        self._at_start: dict[int, tuple[int, int, int]] = {}
        for folder in folders if self._bytes else []:
            try:
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except NotADirectoryError:
                continue
            found = os.statvfs(handle)
            free = handle, found.f_bavail * found.f_frsize, found.f_favail
            self._at_start.setdefault(os.fstat(handle).st_dev, free)

    def limit(self) -> str:
        for handle, free, free_files in self._at_start.values():
            found = os.statvfs(handle)
            gone, files = free - found.f_bavail * found.f_frsize, free_files - found.f_favail
            if gone > 8 * self._bytes:
                return "disk" if self._is_too_much() else "room"  # whoever it was
            if (gone > self._bytes or files > self._files) and self._is_too_much():
                return "disk"
        return ""

    def _is_too_much(self) -> bool:
        """Return True if changed files and open nameless ones of the tree exceed the limit."""
        size = files = 0
        waiting = list(self._folders)
        while waiting and files < _MAX_ENTRIES:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        found = entry.stat(follow_symlinks=False)
                        if found.st_ctime >= self._began:
                            size, files = size + found.st_blocks * 512, files + 1
                        if found.st_mode & _KIND == _FOLDER:
                            waiting.append(entry.path)
            except OSError:
                continue
        nameless: dict[tuple[int, int], int] = {}
        for pid in descendants():
            try:
                for name in os.listdir(f"/proc/{pid}/fd"):
                    found = os.stat(f"/proc/{pid}/fd/{name}")
                    if found.st_nlink == 0:
                        nameless[found.st_dev, found.st_ino] = found.st_blocks * 512
            except OSError:
                continue
        return bool(size + sum(nameless.values()) > self._bytes or files > self._files)


# ── giving up rights ──


def _limit(order: dict[str, Any]) -> None:
    """Limit each process. The limit on processes does not bind root, so nobody counts for it."""
    rlimits = list(order["rlimits"])
    if user := os.getuid():
        others = threads_of(user)
        rlimits.append((resource.RLIMIT_NPROC, others + order["processes"]))
    for kind, wanted in rlimits:
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def confine(order: dict[str, Any]) -> None:
    """Capabilities, Landlock, seccomp; all of it, or an error."""
    capget, capset = _CAPABILITIES[order["machine"]]
    if syscalls.held_capabilities(capget):
        for capability in range(_LAST_CAPABILITY + 1):
            syscalls.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # needs a capability itself
    syscalls.prctl(_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0)
    syscalls.prctl(_AMBIENT, 4, 0, 0, 0)
    if syscalls.held_capabilities(capget):  # our own unit refuses the call that it does not need
        syscalls.no_capabilities(capset)
    syscalls.check_result(syscalls.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if order["rules"]:
        handled = b"".join(rights.to_bytes(8, "little") for rights in order["handled"])
        ruleset = syscalls.check_result(
            syscalls.syscall(_CREATE_RULESET, handled, order["handled_size"], 0), "landlock"
        )
        for path, rights in order["rules"]:
            _allow(ruleset, path, rights)
        syscalls.check_result(syscalls.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
        os.close(ruleset)
    syscalls.filter_calls(order["filter"])


def _hand_over(program: bytes, listener: int) -> None:
    """Hand over the filter for bubblewrap, which applies it last, and the way out of a listener."""
    if listener:
        os.dup2(listener, _LISTENER_HANDLE)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    write_all(writing, program)
    os.close(writing)
    os.dup2(reading, _FILTER_HANDLE)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a Landlock rule for a path; a missing path or a link is skipped."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        kind = os.fstat(opened).st_mode & _KIND
        if kind == _LINK:
            return
        if kind != _FOLDER:
            rights &= _FILE_RIGHTS
        rule = rights.to_bytes(8, "little") + opened.to_bytes(4, "little")
        syscalls.check_result(syscalls.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock rule for {path}")
    finally:
        os.close(opened)


def _close_others() -> None:
    """All descriptors but the first three; what tells of trouble closes with exec and is kept."""
    for name in os.listdir("/proc/self/fd"):
        handle = int(name)
        try:
            if handle > 2 and os.get_inheritable(handle):
                os.close(handle)
        except OSError:
            continue


def _execute(words: list[str], environment: dict[str, str]) -> None:
    """Become the program, which is looked for in the PATH that it gets."""
    places = [""] if "/" in words[0] else [f"{one}/" for one in environment.get("PATH", "").split(":")]
    trouble: OSError | None = None
    for place in places:
        try:
            os.execve(f"{place}{words[0]}", words, environment)
        except OSError as error:
            if trouble is None or not isinstance(error, FileNotFoundError | NotADirectoryError):
                trouble = error
    raise trouble or FileNotFoundError(words[0])
