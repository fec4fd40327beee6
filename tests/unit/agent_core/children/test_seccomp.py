"""The filter, line by line: what it lets through and what not, on both machines, without a kernel."""

from __future__ import annotations

import functools
import struct

import pytest

from agent_core.children import seccomp
from agent_core.children.seccomp import _REFUSED, _SIGNALS, ARCHITECTURES

filter_program = functools.cache(seccomp.filter_program)
ALLOWED, KILLED, EPERM, ENOSYS, NOTHING = 0x7FFF0000, 0x80000000, 0x50001, 0x50026, 0x50000


def answer(program, number, *arguments, architecture):
    """Run a BPF program over one system call, as the kernel does."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *[*arguments, *[0] * 6][:6])
    lines = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at, held = 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        match code:
            case 0x20:
                held = struct.unpack_from("=I", data, value)[0]
            case 0x15:
                at += yes if held == value else no
            case 0x35:
                at += yes if held >= value else no
            case 0x45:
                at += yes if held & value else no
            case 0x06:
                return value


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request):
    return request.param


@pytest.fixture
def ask(machine):
    """What is answered to a call, whose number is given for both machines."""

    def one(x86, arm, *arguments, landlock=7):
        number = x86 if machine == "x86_64" else arm
        return answer(
            filter_program(machine, landlock), number, *arguments, architecture=ARCHITECTURES[machine]
        )

    return one


def test_what_programs_do_all_the_time_goes_through(ask):
    """read, write, openat, execve, wait4, exit_group, pipe2, kill."""
    for x86, arm in ((0, 63), (1, 64), (257, 56), (59, 221), (61, 260), (231, 94), (293, 59), (62, 129)):
        assert ask(x86, arm) == ALLOWED


def test_an_open_file_gets_no_attributes_and_programs_that_copy_files_go_on(ask):
    """fsetxattr and fremovexattr are not supported; fgetxattr is."""
    assert ask(190, 7) == ask(199, 16) == 0x50000 | 95
    assert ask(193, 10) == ALLOWED


def test_every_named_call_is_refused(machine):
    program = filter_program(machine, 7)
    column = ("x86_64", "aarch64").index(machine)
    for name, numbers in _REFUSED.items():
        if numbers[column] >= 0:
            assert answer(program, numbers[column], architecture=ARCHITECTURES[machine]) == EPERM, name


def test_there_are_sockets_of_tcp_alone_and_only_where_it_is_said(machine):
    """Family, type, protocol; 0o2004000 are flags of the type, which close and do not block."""
    number, architecture = (41 if machine == "x86_64" else 198), ARCHITECTURES[machine]
    tcp = [(2, 1, 0), (2, 1, 6), (2, 1 | 0o2004000, 0), (2, 1 | 0o2000000, 6)]
    others = [
        *[(family, 1, 0) for family in (0, 1, 10, 16, 17, 38, 40)],
        *[(2, kind, 0) for kind in (0, 2, 3, 4, 5, 10, 2 | 0o2000000, 3 | 0o4000)],
        *[(2, 1, protocol) for protocol in (1, 17, 132, 255, 256, 262)],
    ]
    for arguments in (*tcp, *others):
        without = answer(filter_program(machine, 7), number, *arguments, architecture=architecture)
        connects = filter_program(machine, 7, sockets="tcp")
        found = answer(connects, number, *arguments, architecture=architecture)
        assert without == EPERM
        assert found == (ALLOWED if arguments in tcp else EPERM), arguments


def test_no_number_stands_for_two_calls(machine):
    column = ("x86_64", "aarch64").index(machine)
    numbers = [each[column] for each in [*_REFUSED.values(), *_SIGNALS.values()] if each[column] >= 0]
    assert len(numbers) == len(set(numbers))


def test_another_architecture_is_the_end(machine):
    """The 32-bit calls of the same machine have other numbers; a filter that let them in would filter nothing."""
    for other in (0x40000003, 0x40000028, 0xC00000B7 if machine == "x86_64" else 0xC000003E):
        assert answer(filter_program(machine, 7), 1, architecture=other) == KILLED


def test_x32_calls_do_not_exist():
    program = filter_program("x86_64", 7)
    assert answer(program, 0x40000000 + 41, architecture=ARCHITECTURES["x86_64"]) == ENOSYS


def test_a_process_is_cloned_but_no_namespace(ask):
    assert ask(56, 220, 0x11) == ALLOWED
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(56, 220, 0x11 | flag) == EPERM
    assert ask(435, 435) == ENOSYS


def test_arguments_decide_where_they_must(ask):
    """Terminals are not typed into, other processes' limits not set, times by path not changed."""
    assert ask(16, 29, 0, 0x5401) == ALLOWED
    assert ask(16, 29, 0, 0x5412) == EPERM
    assert ask(16, 29, 0, 0x541C) == EPERM
    assert ask(16, 29, 0, 0x8901) == EPERM
    assert ask(16, 29, 0, 0x8902) == EPERM
    for changes in (0x40086602, 0x401C5820, 0x40806685):  # marks of a file that may only be read
        assert ask(16, 29, 3, changes) == EPERM
    for command, wanted in ((0, ALLOWED), (2, ALLOWED), (4, ALLOWED), (6, ALLOWED), (1030, ALLOWED)):
        assert ask(72, 25, 0, command) == wanted
    for command in (8, 10, 15, 1024, 1026, 1040):
        assert ask(72, 25, 0, command) == EPERM
    assert ask(141, 140, 0, 0, 19) == ALLOWED
    for which, who in ((0, 4711), (1, 0), (2, 0), (2, 4711)):
        assert ask(141, 140, which, who, 19) == EPERM
    assert ask(112, 157) == NOTHING
    assert ask(162, 81) == NOTHING
    assert ask(306, 267, 3) == NOTHING
    assert ask(74, 82, 3) == ALLOWED
    assert ask(302, 261, 0) == ALLOWED
    assert ask(302, 261, 4711) == EPERM
    assert ask(280, 88, 3, 0) == ALLOWED
    assert ask(280, 88, 3, 0x1000) == NOTHING
    assert ask(280, 88, 3, 0x7F00_0000_0000) == NOTHING
    assert ask(53, 199, 1) == ALLOWED
    assert ask(53, 199, 2) == EPERM
    assert ask(157, 167, 4) == EPERM
    assert ask(157, 167, 15) == ALLOWED


def test_by_path_a_file_can_be_made_executable_for_its_owner_and_nothing_else(ask):
    """No mode that opens something to others, none that takes something from the owner."""
    for mode in range(0o10000):
        wanted = ALLOWED if mode == 0o700 else NOTHING
        assert ask(268, 53, -100 & 0xFFFFFFFF, 0x1000, mode) == wanted


def test_no_file_gets_a_set_user_id_bit(ask):
    for bits, wanted in ((0o755, ALLOWED), (0o1777, ALLOWED), (0o4755, EPERM), (0o2755, EPERM)):
        assert ask(91, 52, 3, bits) == wanted
        assert ask(257, 56, 3, 0x1000, 0o102, bits) == wanted
        assert ask(257, 56, 3, 0x1000, 0o102, bits, landlock=1) == wanted
        assert ask(259, 33, 3, 0x1000, 0o100000 | bits) == wanted
    assert ask(437, 437) == ENOSYS


def test_what_landlock_does_not_know_yet_is_refused_here(ask):
    """Signals before version 6; cutting files by their path before version 3."""
    for x86, arm in _SIGNALS.values():
        assert ask(x86, arm, landlock=6) == ALLOWED
        assert ask(x86, arm, landlock=5) == EPERM
    assert ask(76, 45, landlock=3) == ALLOWED
    assert ask(76, 45, landlock=2) == EPERM
    assert ask(257, 56, 0, 0, 0o1000, landlock=2) == EPERM
    assert ask(257, 56, 0, 0, 0o1001, landlock=2) == ALLOWED
    assert ask(257, 56, 0, 0, 0o0, landlock=2) == ALLOWED
    assert ask(257, 56, 0, 0, 0o1000, landlock=3) == ALLOWED
    assert ask(437, 437, landlock=2) == ENOSYS


def test_a_machine_whose_calls_are_not_known_has_no_filter():
    with pytest.raises(LookupError):
        filter_program("riscv64", 7)
