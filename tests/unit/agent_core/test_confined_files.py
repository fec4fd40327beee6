"""The walk below a folder: what it opens, what it refuses, and what somebody who exchanges links gets."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from agent_core.confined_files import folder_below, identity_of, open_below, open_file, parts_of


def _content(folder, path, **how):
    handle = open_below(folder, path, **how)
    try:
        return os.read(handle, 1000)
    finally:
        os.close(handle)


@pytest.fixture
def room(tmp_path):
    (tmp_path / "ws" / "deep").mkdir(parents=True)
    (tmp_path / "ws-evil").mkdir()
    (tmp_path / "ws-evil" / "secret").write_text("stolen")
    (tmp_path / "ws" / "deep" / "file").write_text("mine")
    return tmp_path


def test_a_file_below_the_folder_is_opened(room):
    """The negative control of all refusals: an honest path works, also through a link to the root itself."""
    (room / "door").symlink_to(room / "ws")

    assert _content(room / "ws", "deep/file") == b"mine"
    assert _content(room / "door", "deep/file") == b"mine"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../ws-evil/secret",
        "deep/../../ws-evil/secret",
        "./deep",
        "deep//file",
        "a\0b",
    ],
)
def test_no_path_leads_out(room, path):
    """Absolute paths, ``..``, empty parts and NUL are refused before anything is opened."""
    with pytest.raises(ValueError, match="inside the folder"):
        open_below(room / "ws", path)


@pytest.mark.parametrize(
    ("path", "said"), [("\ud800", "half a character"), ("x" * 256, "too long"), ("a/" * 64 + "b", "too long")]
)
def test_names_that_no_system_takes_are_told(path, said):
    """Half surrogates and endless names are a plain refusal, never another exception."""
    with pytest.raises(ValueError, match=said):
        parts_of(path)


def test_a_neighbour_whose_name_begins_the_same_is_not_inside(room):
    """``/ws-evil`` is not below ``/ws``, neither by name nor by a link."""
    (room / "ws" / "link").symlink_to(room / "ws-evil")

    with pytest.raises(ValueError, match="links are not followed"):
        open_below(room / "ws", "link/secret")


def test_links_pipes_sockets_and_folders_are_no_files(room):
    """Only regular files are opened, and nobody waits for the other end of a pipe."""
    ws = room / "ws"
    (ws / "link").symlink_to(ws / "deep" / "file")
    os.mkfifo(ws / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        cwd = os.getcwd()
        os.chdir(ws)
        try:
            listener.bind("socket")
        finally:
            os.chdir(cwd)
    for name in ("link", "pipe", "socket", "deep"):
        with pytest.raises(ValueError):
            open_below(ws, name)
    with pytest.raises(ValueError):  # a device
        open_below(ws.parent.__class__("/dev"), "null")


def test_a_folder_of_another_path_is_known_by_what_it_is(room):
    """A forbidden folder is refused under whatever name it is reached, also as the root."""
    private = {identity_of((room / "ws-evil").stat())}
    (room / "alias").symlink_to(room / "ws-evil")

    for root, path in ((room, "ws-evil/secret"), (room / "alias", "secret"), (room / "ws-evil", "secret")):
        with pytest.raises(ValueError, match="kept private"):
            open_below(root, path, forbidden=private)
    assert _content(room, "ws/deep/file", forbidden=private) == b"mine"


def test_whoever_exchanges_a_folder_for_a_link_meanwhile_gets_nothing(room):
    """A folder and a link out are swapped without pause: the walk reads the honest file or nothing."""
    ws, stop = room / "ws", threading.Event()
    (ws / "deep" / "secret").write_text("honest")
    (ws / "link").symlink_to(room / "ws-evil")

    def swap():
        while not stop.is_set():
            os.rename(ws / "deep", ws / "aside")
            os.rename(ws / "link", ws / "deep")
            os.rename(ws / "deep", ws / "link")
            os.rename(ws / "aside", ws / "deep")

    seen, naive = set(), set()
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(3000):
            try:
                seen.add(_content(ws, "deep/secret"))
            except (ValueError, LookupError):
                seen.add(None)
            try:
                naive.add((ws / "deep" / "secret").read_bytes())
            except OSError:
                pass
    finally:
        stop.set()
        thread.join()
    assert b"stolen" not in seen
    assert b"honest" in seen
    assert b"stolen" in naive  # negative control: the swap does reach who follows links


def test_missing_folders_are_made_for_this_user_only(room):
    """``make`` makes what is missing, mode 0700, and follows no link on the way."""
    (room / "ws" / "link").symlink_to(room / "ws-evil")

    with folder_below(room / "ws", ("new", "er"), make=True) as folder:
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=folder))
    with pytest.raises(ValueError), folder_below(room / "ws", ("link", "er"), make=True):
        pass
    assert (room / "ws" / "new").stat().st_mode & 0o777 == 0o700
    assert not (room / "ws-evil" / "er").exists()
    with pytest.raises(LookupError), folder_below(room / "ws", ("none",)):
        pass


def test_handles_are_given_back(room):
    """Neither success nor refusal leaves a handle open."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        os.close(open_below(room / "ws", "deep/file"))
        for path in ("deep", "deep/none", "none/x"):
            with pytest.raises((ValueError, LookupError)):
                open_below(room / "ws", path)
    with folder_below(room / "ws", ("deep",)) as folder:
        os.close(open_file("file", folder))
    assert len(os.listdir("/proc/self/fd")) == before
