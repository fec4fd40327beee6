"""
Attempts to break out of a sandbox, as a script: ``python escapes.py TARGETS-AS-JSON``.

Each is made in a process of its own and gives one line: ``name done``, ``name refused`` or ``name gone wrong``.
The same script runs without a sandbox as the negative control.
"""

from __future__ import annotations

import json
import os
import select
import sys

# Run in the sandbox with -I, which leaves out the folder of the script.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import escapes_by_kernel  # noqa: F401
import escapes_to_others  # noqa: F401
from attempts import ATTEMPTS, NEEDS_ROOT, NO_CONTROL

__all__ = ["ATTEMPTS", "NEEDS_ROOT", "NO_CONTROL", "main"]


def main():
    targets = json.loads(sys.argv[1])
    left_out = targets.get("left_out", [])
    for name, function in ATTEMPTS.items():
        if name in left_out:
            continue
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            targets["script"] = writing
            try:
                answer = b"done" if function(targets) else b"refused"
            except (OSError, ValueError) as error:
                answer = f"refused ({error})".encode()
            except BaseException as error:
                answer = f"gone wrong ({type(error).__name__}: {error})".encode()
            os.write(writing, answer)
            os._exit(0)
        os.close(writing)
        ready = select.select([reading], [], [], 10)[0]
        print(name, os.read(reading, 500).decode() if ready else "gone wrong (no answer)", flush=True)
        os.close(reading)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
