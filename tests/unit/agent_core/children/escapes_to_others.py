"""Attempts on what belongs to others: files, processes, the network."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import time

from attempts import LIBC, attempt, call, reads, writes

# ── what others have ──


@attempt
def read_a_secret(t):
    return reads(t["secret"])


@attempt
def list_the_home(t):
    return "secret" in os.listdir(t["home"])


@attempt
def read_the_memory_document(t):
    return reads(t["workspace"] + "/MEMORY.md")


@attempt
def read_a_skill(t):
    return reads(t["workspace"] + "/skills/a/SKILL.md")


@attempt(root=True)
def read_the_shadow_file(t):
    return reads("/etc/shadow")


@attempt
def read_an_environment(t):
    return reads(f"/proc/{t['pid']}/environ")


@attempt
def read_a_command_line(t):
    return reads(f"/proc/{t['pid']}/cmdline")


@attempt
def read_memory_of_another(t):
    os.close(os.open(f"/proc/{t['pid']}/mem", os.O_RDONLY))
    return True


@attempt
def read_through_the_root_of_another(t):
    return reads(f"/proc/{t['pid']}/root{t['secret']}")


@attempt
def read_through_the_folder_of_another(t):
    return bool(os.listdir(f"/proc/{t['pid']}/cwd"))


@attempt
def list_the_processes(t):
    return str(t["pid"]) in os.listdir("/proc")


@attempt
def trace_another(t):
    return call(101, 117, 0x4206, t["pid"], 0, 0) == 0


@attempt
def read_memory_by_call(t):
    there = ctypes.create_string_buffer(8)
    vector = struct.pack("PN", ctypes.addressof(there), 8)
    held = ctypes.create_string_buffer(vector, 16)
    at = struct.pack("PN", t["address"], 8)
    remote = ctypes.create_string_buffer(at, 16)
    return call(310, 270, t["pid"], ctypes.byref(held), 1, ctypes.byref(remote), 1, 0) > 0


@attempt
def signal_another(t):
    os.kill(t["pid"], 0)
    return True


@attempt
def signal_by_handle(t):
    signal.pidfd_send_signal(os.pidfd_open(t["pid"]), signal.SIGCONT)
    return True


@attempt
def have_the_kernel_signal_another(t):
    """When something comes by a pipe, any signal, SIGKILL too; no call of kill(2) is made."""
    reading, _writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, t["pid"])
    return True


@attempt
def have_the_kernel_signal_another_for_a_socket(t):
    one, _other = socket.socketpair()
    fcntl.ioctl(one, 0x8901, struct.pack("i", t["pid"]))
    return True


@attempt
def choose_the_signal_that_the_kernel_sends(t):
    fcntl.fcntl(os.pipe()[0], 10, signal.SIGKILL)
    return True


@attempt
def make_whoever_opens_a_file_wait(t):
    handle = os.open("leased", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return True


@attempt
def be_told_what_changes_in_a_folder(t):
    fcntl.fcntl(os.open(t["workspace"], os.O_RDONLY), fcntl.F_NOTIFY, 4)
    return True


@attempt
def make_more_than_itself_slow(t):
    """A group stands for all processes of the user, which are as easily named."""
    os.setpgid(0, 0)
    os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PGRP, 0))
    return True


@attempt
def make_another_slow(t):
    os.setpriority(os.PRIO_PROCESS, t["pid"], os.getpriority(os.PRIO_PROCESS, t["pid"]))
    return True


@attempt
def take_back_that_it_gives_way(t):
    """Without a privilege a session may become as important as others again."""
    handle = os.open("/proc/self/autogroup", os.O_WRONLY)
    try:
        return os.write(handle, b"0") == 1
    finally:
        os.close(handle)


@attempt
def limit_another(t):
    resource.prlimit(t["pid"], resource.RLIMIT_CORE, (0, 0))
    return True


@attempt
def pin_another(t):
    os.sched_setaffinity(t["pid"], os.sched_getaffinity(0))
    return True


@attempt
def take_a_descriptor_of_another(t):
    return call(438, 438, os.pidfd_open(t["pid"]), 0, 0) >= 0


@attempt
def find_an_open_descriptor(t):
    found = []
    for number in range(3, 60):
        try:
            os.fstat(number)
            found.append(number)
        except OSError:
            pass
    return bool(set(found) - {t["script"]})


# ── the network ──


def connects(family, kind, address):
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        made.connect(address)
    return True


@attempt
def connect_to_loopback(t):
    return connects(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", t["tcp"]))


@attempt
def connect_to_loopback_by_ipv6(t):
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM):
        return True


@attempt(control=False)
def connect_to_the_metadata_service(t):
    return connects(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80))


@attempt
def send_a_datagram(t):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return made.sendto(b"x", ("127.0.0.1", t["udp"])) == 1


@attempt
def listen_for_others(t):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
    return True


@attempt
def connect_to_the_control_socket(t):
    return connects(socket.AF_UNIX, socket.SOCK_STREAM, t["socket"])


@attempt
def connect_to_an_abstract_socket(t):
    return connects(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + t["abstract"])


@attempt
def ask_the_kernel_by_netlink(t):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        return True


@attempt(root=True)
def forge_packets(t):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return True


# ── files of others ──


@attempt
def write_into_the_home(t):
    return writes(t["home"] + "/new")


@attempt
def write_into_tmp(t):
    return writes(t["tmp"] + "/new")


@attempt
def change_the_memory_document(t):
    return writes(t["workspace"] + "/MEMORY.md", os.O_APPEND)


@attempt
def add_a_skill(t):
    os.mkdir(t["workspace"] + "/skills/b")
    return True


@attempt
def plant_a_file_of_the_prompt(t):
    return writes(t["workspace"] + "/HEARTBEAT.md")


@attempt
def change_a_hidden_folder_of_the_workspace(t):
    return writes(t["workspace"] + "/.git/hook")


@attempt
def cut_a_file(t):
    os.truncate(t["victim"], 1)
    return True


@attempt
def cut_while_opening(t):
    return writes(t["victim"], os.O_TRUNC)


@attempt
def take_a_file_away(t):
    os.rename(t["home"] + "/movable", "movable")
    return True


@attempt
def put_a_file_there(t):
    writes("mine")
    os.rename("mine", t["home"] + "/mine")
    return True


@attempt
def link_a_secret(t):
    os.link(t["secret"], "linked")
    return reads("linked")


@attempt
def read_through_a_link(t):
    os.symlink(t["secret"], "pointing")
    return reads("pointing")


@attempt
def read_through_a_linked_folder(t):
    os.symlink(t["home"], "pointing-folder")
    return reads("pointing-folder/secret")


@attempt
def read_through_a_link_that_changes(t):
    writes("plain")
    child = os.fork()
    if child == 0:
        while True:
            for target in ("plain", t["secret"]):
                os.symlink(target, f"other-{os.getpid()}")
                os.replace(f"other-{os.getpid()}", "changing")
    found = False
    end = time.monotonic() + 2
    while not found and time.monotonic() < end:
        try:
            with open("changing", "rb") as file:
                found = file.read() != b""
        except OSError:
            continue
    try:
        os.kill(child, signal.SIGKILL)
    except OSError:
        pass
    return found


@attempt
def delete_a_file(t):
    os.unlink(t["home"] + "/deletable")
    return True


@attempt
def open_a_secret_to_all(t):
    os.chmod(t["secret"], 0o644)
    return os.stat(t["secret"]).st_mode & 0o077 != 0


@attempt
def open_a_folder_to_all(t):
    os.chmod(t["home"], 0o755)
    return os.stat(t["home"]).st_mode & 0o077 != 0


@attempt
def lock_the_daemon_out(t):
    os.chmod(t["home"], 0)
    found = os.stat(t["home"]).st_mode & 0o700 == 0
    os.chmod(t["home"], 0o700)
    return found


@attempt
def make_a_program_that_runs_as_its_owner(t):
    handle = os.open("suid", os.O_CREAT | os.O_RDWR, 0o700)
    os.fchmod(handle, 0o4755)
    return os.fstat(handle).st_mode & 0o6000 != 0


@attempt
def make_such_a_program_at_once(t):
    return os.fstat(os.open("suid-new", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o4755)).st_mode & 0o6000 != 0


@attempt
def make_such_a_program_by_path(t):
    writes("suid-path")
    os.chmod("suid-path", 0o4700)
    return os.stat("suid-path").st_mode & 0o6000 != 0


@attempt(root=True)
def give_a_file_away(t):
    os.chown(t["victim"], 1, 1)
    return True


@attempt
def change_times(t):
    os.utime(t["victim"], (1, 1))
    return os.stat(t["victim"]).st_mtime == 1


@attempt
def change_attributes(t):
    os.setxattr(t["victim"], "user.a", b"x")
    return True


@attempt
def keep_words_beside_a_file(t):
    """Where nobody looks who wants to know whose words are in it."""
    writes("of-the-owner")
    handle = os.open("of-the-owner", os.O_RDONLY)
    os.setxattr(handle, "user.a", b"x")
    return os.getxattr(handle, "user.a") == b"x"


@attempt
def keep_words_beside_a_folder(t):
    handle = os.open(".", os.O_RDONLY)
    os.setxattr(handle, "user.a", b"x")
    os.removexattr(handle, "user.a")
    return True


@attempt
def mark_a_file(t):
    """As chattr does: that it is not to be dumped."""
    writes("to-be-marked")
    handle = os.open("to-be-marked", os.O_RDONLY)
    fcntl.ioctl(handle, 0x40086602, struct.pack("l", 0x40))
    return struct.unpack("l", fcntl.ioctl(handle, 0x80086601, bytes(8)))[0] & 0x40 != 0


@attempt
def take_all_timers_of_the_user(t):
    """The daemon, and whatever else runs as its user, could have none any more."""
    made = ctypes.c_int()
    for _ in range(2000):
        call(222, 107, 1, 0, ctypes.byref(made))
    return True


@attempt
def write_through_a_path_descriptor(t):
    handle = os.open(t["victim"], os.O_PATH)
    return writes(f"/proc/self/fd/{handle}", 0)


@attempt
def write_shared_memory(t):
    return writes("/dev/shm/" + t["name"])


@attempt(root=True)
def open_a_disk(t):
    os.mknod("disk", 0o600 | 0o060000, os.makedev(7, 0))
    return True


@attempt(root=True)
def open_by_handle(t):
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    call(303, 264, -100, ctypes.c_char_p(t["secret"].encode()), handle, ctypes.byref(mount), 0)
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    place = os.open(t["home"], os.O_RDONLY | os.O_DIRECTORY)
    os.close(folder)
    return call(304, 265, place, handle, os.O_RDONLY) >= 0


@attempt
def watch_a_folder(t):
    return call(254, 27, LIBC.inotify_init(), ctypes.c_char_p(t["home"].encode()), 0x100) >= 0


@attempt(root=True)
def change_the_kernel(t):
    return writes("/proc/sys/kernel/core_pattern", 0)
