"""The C library's allocator does what it is asked: one arena for all threads, and free memory goes back."""

from __future__ import annotations

import ctypes
import linecache
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from gateway.system.process_tuning import trim_memory

ROOT = Path(__file__).resolve().parents[4]

_ARENAS = """
import ctypes, sys, threading
from gateway.system.process_tuning import use_one_arena
if sys.argv[1] == "shared":
    assert use_one_arena()
C = ctypes.CDLL(None)
C.malloc.restype = ctypes.c_void_p
C.fopen.restype = ctypes.c_void_p
together = threading.Barrier(4)
def work():
    together.wait()
    for _ in range(200):
        C.malloc(2000)
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
told = C.fopen(b"/dev/stdout", b"w")
C.malloc_info(0, ctypes.c_void_p(told))
C.fclose(ctypes.c_void_p(told))
"""

_FREED = """
import ctypes, sys
from gateway.system.process_tuning import trim_memory
C = ctypes.CDLL(None)
C.malloc.restype = ctypes.c_void_p
C.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def resident():
    return int(open("/proc/self/statm").read().split()[1])
blocks = [C.malloc(8_000) for _ in range(8_000)]
for block in blocks: C.memset(block, 1, 8_000)
last = blocks.pop()  # above all others: what is below cannot be cut off from the end
for block in blocks: C.free(ctypes.c_void_p(block))
before = resident()
if sys.argv[1] == "asked":
    assert trim_memory()
print(before - resident())
"""

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")


def told(code: str, how: str) -> str:
    """What ``code`` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, how], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@glibc
def test_all_threads_share_one_arena():
    """Threads allocate where the main thread does; left alone, each of them gets an arena of its own."""
    assert told(_ARENAS, "shared").count("<heap nr=") == 1
    assert told(_ARENAS, "alone").count("<heap nr=") > 1


@glibc
def test_free_memory_is_given_back():
    """64 MB that lie free below something that is needed go back to the system; left alone, they stay."""
    pages_of_32_mb = 32 * 2**20 // 4096
    assert int(told(_FREED, "asked")) > pages_of_32_mb
    assert int(told(_FREED, "alone")) < pages_of_32_mb


def test_sources_are_not_kept_for_tracebacks_that_are_over():
    """A traceback has Python keep each file that it names, whole; the next one reads them again."""
    try:
        raise ValueError("seen")
    except ValueError:
        assert 'raise ValueError("seen")' in traceback.format_exc()
    assert __file__ in linecache.cache  # the control
    trim_memory()
    assert __file__ not in linecache.cache
    assert linecache.getline(__file__, 1).startswith('"""')
