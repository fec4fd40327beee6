"""
The system calls that a confined program does not get, as a BPF program for seccomp(2). Pure. Refused calls
give EPERM, ``clone3`` ENOSYS so that ``clone`` with readable flags is used; a wrong architecture kills.
Landlock does not guard changes of mode, owner, times and attributes by path, with which a program could open
the daemon's secrets: only the forms for open files remain. Mode 700 by path is allowed, others seem to
succeed, since unpacking programs need them; no set-user-id, and no extended attributes, which need no right
to write. A new session seems to be made, too: each would have the weight of the daemon's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal

_ALLOW, _KILL, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
_PRETEND, _UNSUPPORTED = 0x00050000, 0x00050000 | 95
"""The call is not made and has succeeded; EOPNOTSUPP, after which programs that copy files go on."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_X32_CALLS = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_OWNER_OF_SOCKET, _GROUP_OF_SOCKET = 0x8901, 0x8902
_SET_FLAGS, _SET_ATTRIBUTES, _SEAL = 0x40086602, 0x401C5820, 0x40806685
"""Of ioctl(2): what changes a file that may only be read (chattr, project, fs-verity)."""
_SET_OWNER, _SET_SIGNAL, _SET_OWNER_EX, _SET_LEASE, _NOTIFY, _SET_DELEGATION = 8, 10, 15, 1024, 1026, 1040
"""Of fcntl(2): what makes the kernel send signals to anybody, and what makes others wait at opening."""
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_PR_SET_DUMPABLE, _PRIO_PROCESS = 4, 0
_AF_UNIX, _AF_INET = 1, 2
_SOCK_STREAM, _SOCK_FLAGS = 1, 0o2004000
_IPPROTO_TCP = 6

ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The machines whose calls are known, by `platform.machine`, with their audit numbers."""

_REFUSED: Mapping[str, tuple[int, int]] = {
    # other processes, and what a process can do to the daemon as the same user
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # the network, and what connects processes beside the file system
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # memory that no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # large surfaces of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # namespaces, mounts, handles
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "inotify_add_watch": (254, 27),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "listns": (470, 470),
    # what a user, or the machine, has so many of in all
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    # changes by path, which Landlock does not know
    "chown": (92, -1),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
"""Numbers on x86-64 and aarch64; -1 where the machine has no such call."""
_SIGNALS: Mapping[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_TRUNCATE, _SOCKET = (76, 45), (41, 198)
_CLONE, _CLONE3, _IOCTL, _PRCTL = (56, 220), (435, 435), (16, 29), (157, 167)
_FCNTL = (72, 25)
_UTIMENSAT, _PRLIMIT, _SETPRIORITY, _SOCKETPAIR = (280, 88), (302, 261), (141, 140), (53, 199)
_OPEN, _OPENAT, _OPENAT2, _CREAT = (2, -1), (257, 56), (437, 437), (85, -1)
_MODES_BY_PATH = (((90, -1), 1), ((268, 53), 2), ((452, 452), 2))
"""chmod, fchmodat, fchmodat2, and which argument is the mode."""
_MODES = (((91, 52), 1), ((85, -1), 1), ((2, -1), 2), ((257, 56), 3), ((133, -1), 1), ((259, 33), 2))
"""fchmod, creat, open, openat, mknod, mknodat."""
_SYNC, _SYNCFS, _SETSID = (162, 81), (306, 267), (112, 157)
_TIMES_BY_PATH = ((132, -1), (235, -1), (261, -1))
"""utime, utimes, futimesat."""
_ATTRIBUTES_OF_OPEN = ((190, 7), (199, 16))
"""fsetxattr, fremovexattr."""
_NOT_MADE = (
    *((numbers, _PRETEND) for numbers in (*_TIMES_BY_PATH, _SYNC, _SYNCFS, _SETSID)),
    *((numbers, _UNSUPPORTED) for numbers in _ATTRIBUTES_OF_OPEN),
)
_OWNER_ONLY, _SET_ID = 0o700, 0o6000

_Line = tuple[int, int, int, int]
Sockets = Literal["none", "tcp", "network"]


def filter_program(machine: str, landlock: int, *, sockets: Sockets = "none") -> bytes:
    """
    Build the seccomp filter for a machine and Landlock version. Raises LookupError.

    Before version 6 Landlock restricts no signals, so none can be sent; before 3 no truncation, so calls that
    truncate by path are refused. ``sockets``: TCP over IPv4, for a program in its own network, or all but
    Unix sockets.
    """
    column = ("x86_64", "aarch64").index(machine) if machine in ARCHITECTURES else None
    if column is None:
        raise LookupError(f"the system calls of {machine} are not known")
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_GIVE, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32_CALLS), (_GIVE, 0, 0, _UNKNOWN)]
    refused = [numbers[column] for numbers in _REFUSED.values()]
    if landlock < 6:
        refused += [numbers[column] for numbers in _SIGNALS.values()]
    unknown = [_CLONE3[column], _OPENAT2[column]]  # whose arguments cannot be read here
    if landlock < 3:
        refused.append(_TRUNCATE[column])
    lines += _when(_SOCKET[column], _SOCKETS[sockets])
    for numbers, argument in _MODES:
        opens = numbers in (_OPEN, _OPENAT)
        before = _not_cut_unwritten(argument - 1) if opens and landlock < 3 else []
        lines += _when(numbers[column], [*before, *_no_bit(argument, _SET_ID)])
    for numbers, argument in _MODES_BY_PATH:
        lines += _when(numbers[column], _only(argument, _OWNER_ONLY, otherwise=_PRETEND))
    for numbers, told in _NOT_MADE:
        lines += _when(numbers[column], [(_GIVE, 0, 0, told)])
    lines += _when(_CLONE[column], _no_bit(0, _NEW_NAMESPACES))
    controlling = (_TIOCSTI, _TIOCLINUX, _OWNER_OF_SOCKET, _GROUP_OF_SOCKET)
    lines += _when(_IOCTL[column], _none_of(1, *controlling, _SET_FLAGS, _SET_ATTRIBUTES, _SEAL))
    owning = (_SET_OWNER, _SET_SIGNAL, _SET_OWNER_EX)
    lines += _when(_FCNTL[column], _none_of(1, *owning, _SET_LEASE, _NOTIFY, _SET_DELEGATION))
    lines += _when(_PRCTL[column], _none_of(0, _PR_SET_DUMPABLE))
    lines += _when(_UTIMENSAT[column], _is_null(1))
    lines += _when(_PRLIMIT[column], _only(0, 0))
    own = [_low(0), (_EQUAL, 1, 0, _PRIO_PROCESS), (_GIVE, 0, 0, _REFUSE), *_only(1, 0)]
    lines += _when(_SETPRIORITY[column], own)
    lines += _when(_SOCKETPAIR[column], _only(0, _AF_UNIX))
    for number in sorted(number for number in refused if number >= 0):
        lines += [(_EQUAL, 0, 1, number), (_GIVE, 0, 0, _REFUSE)]
    for number in unknown:
        lines += [(_EQUAL, 0, 1, number), (_GIVE, 0, 0, _UNKNOWN)]
    lines.append((_GIVE, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _when(number: int, body: list[_Line]) -> list[_Line]:
    """``body``, which decides, for one call; nothing for the others."""
    return [(_EQUAL, 0, len(body), number), *body] if number >= 0 else []


def _low(argument: int) -> _Line:
    """Load the lower half of an argument (both machines have it first)."""
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _only(argument: int, value: int, otherwise: int = _REFUSE) -> list[_Line]:
    return [_low(argument), (_EQUAL, 0, 1, value), (_GIVE, 0, 0, _ALLOW), (_GIVE, 0, 0, otherwise)]


def _only_tcp() -> list[_Line]:
    """Family, type without its flags, protocol."""
    return [
        *(_low(0), (_EQUAL, 1, 0, _AF_INET), (_GIVE, 0, 0, _REFUSE)),
        *(_low(1), (_ANY_BIT, 0, 1, 0xFFFF_FFFF & ~(_SOCK_STREAM | _SOCK_FLAGS)), (_GIVE, 0, 0, _REFUSE)),
        *((_ANY_BIT, 1, 0, _SOCK_STREAM), (_GIVE, 0, 0, _REFUSE)),
        *(_low(2), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, _IPPROTO_TCP), (_GIVE, 0, 0, _ALLOW)),
        (_GIVE, 0, 0, _REFUSE),
    ]


def _none_of(argument: int, *values: int) -> list[_Line]:
    tests = [line for value in values for line in ((_EQUAL, 0, 1, value), (_GIVE, 0, 0, _REFUSE))]
    return [_low(argument), *tests, (_GIVE, 0, 0, _ALLOW)]


_SOCKETS: Mapping[Sockets, list[_Line]] = {
    "none": [(_GIVE, 0, 0, _REFUSE)],
    "tcp": _only_tcp(),
    "network": _none_of(0, _AF_UNIX),
}


def _no_bit(argument: int, bits: int) -> list[_Line]:
    return [_low(argument), (_ANY_BIT, 0, 1, bits), (_GIVE, 0, 0, _REFUSE), (_GIVE, 0, 0, _ALLOW)]


def _is_null(argument: int) -> list[_Line]:
    """Let the times of an open file be set, and those by a path seem to be."""
    high = (_LOAD, 0, 0, 16 + 8 * argument + 4)
    return [
        *(_low(argument), (_EQUAL, 0, 3, 0), high, (_EQUAL, 0, 1, 0)),
        *((_GIVE, 0, 0, _ALLOW), (_GIVE, 0, 0, _PRETEND)),
    ]


def _not_cut_unwritten(argument: int) -> list[_Line]:
    """O_TRUNC needs the right to write, which a file that is opened for reading alone is not asked for."""
    return [
        *(_low(argument), (_ANY_BIT, 0, 2, _O_TRUNC), (_ANY_BIT, 1, 0, _O_ACCMODE)),
        (_GIVE, 0, 0, _REFUSE),
    ]
