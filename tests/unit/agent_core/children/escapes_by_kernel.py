"""Attempts by what the kernel offers: keys, rings, namespaces, limits, terminals, the machine itself."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct

from attempts import LIBC, attempt, call


@attempt
def keep_a_key(t):
    return (
        call(
            248,
            217,
            ctypes.c_char_p(b"user"),
            ctypes.c_char_p(b"squidbot-test"),
            ctypes.c_char_p(b"x"),
            1,
            -1,
        )
        > 0
    )


@attempt
def ask_for_the_session_keyring(t):
    return call(250, 219, 0, -1, 1) > 0


@attempt
def ring(t):
    return call(425, 425, 4, ctypes.create_string_buffer(256)) >= 0


@attempt
def take_what_the_machine_has_few_of(t):
    """Contexts of asynchronous input, of which there are so many for all programs together."""
    return call(206, 0, 1, ctypes.create_string_buffer(8)) == 0


@attempt
def take_what_the_user_has_few_of(t):
    return LIBC.inotify_init() >= 0


@attempt
def list_the_mounts(t):
    asked = struct.pack("=IIQQQ", 32, 0, 0xFFFFFFFFFFFFFFFF, 0, 0)
    return call(458, 458, ctypes.create_string_buffer(asked), ctypes.create_string_buffer(8), 1, 0) > 0


@attempt
def enter_a_user_namespace(t):
    return call(272, 97, 0x10000000) == 0


@attempt
def clone_into_a_namespace(t):
    found = call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)
    if found == 0:
        os._exit(0)
    return True


@attempt
def clone_into_a_namespace_by_the_new_call(t):
    arguments = ctypes.create_string_buffer(struct.pack("=8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0))
    found = call(435, 435, arguments, 64)
    if found == 0:
        os._exit(0)
    return True


@attempt(root=True)
def mount_something(t):
    os.mkdir("mounted")
    call(165, 40, ctypes.c_char_p(b"none"), ctypes.c_char_p(b"mounted"), ctypes.c_char_p(b"tmpfs"), 0, 0)
    return call(166, 39, ctypes.c_char_p(b"mounted"), 2) == 0


@attempt(root=True)
def change_the_root(t):
    os.chroot(".")
    return True


@attempt(root=True)
def enter_a_namespace_of_another(t):
    return call(308, 268, os.open("/proc/1/ns/uts", os.O_RDONLY), 0) == 0


@attempt(root=True)
def load_a_program_into_the_kernel(t):
    arguments = ctypes.create_string_buffer(struct.pack("=4I", 1, 4, 4, 1) + bytes(112))
    return call(321, 280, 0, arguments, 128) >= 0


@attempt(root=True)
def measure_the_kernel(t):
    arguments = ctypes.create_string_buffer(struct.pack("=IIQ", 1, 112, 0) + bytes(96))
    return call(298, 241, arguments, -1, 0, -1, 0) >= 0


@attempt
def handle_own_faults(t):
    return call(323, 282, 1) >= 0


@attempt
def have_memory_that_nobody_counts(t):
    return os.memfd_create("x") >= 0


@attempt
def have_shared_memory_of_the_old_kind(t):
    made = call(29, 194, 0, 4096, 0o1600)
    return call(31, 195, made, 0, 0) == 0  # and away with it


@attempt
def be_hidden_from_the_runner(t):
    return LIBC.prctl(4, 0, 0, 0, 0) == 0


@attempt(root=True)
def type_into_a_terminal(t):
    import fcntl

    _own, other = os.openpty()
    os.setsid()
    fcntl.ioctl(other, 0x540E, 0)
    fcntl.ioctl(other, 0x5412, b"x")
    return True


@attempt
def call_for_type_into_a_terminal(t):
    """Where there is no terminal the call itself is refused, before the kernel says that there is none."""
    LIBC.ioctl(0, 0x5412, b"x")
    return ctypes.get_errno() != 1


@attempt(root=True)
def have_capabilities(t):
    held = (ctypes.c_uint32 * 6)()
    call(125, 90, (ctypes.c_uint32 * 2)(0x20080522, 0), held)
    return any(held)


@attempt(root=True)
def raise_a_limit(t):
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    return True


@attempt(root=True)
def have_others_killed_first(t):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-500")
    return True


@attempt(root=True)
def leave_the_control_group(t):
    with open(t["group"], "w") as file:
        file.write("0")
    return True


@attempt(root=True, control=False)
def set_the_clock(t):
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return True


@attempt(root=True)
def name_the_machine(t):
    socket.sethostname(socket.gethostname())
    return True
