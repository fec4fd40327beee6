"""Run one module of this package under the Python of a tool environment.

`python -I bootstrap.py devservers.mailhost.main ARGUMENTS...`. The tool's Python must see `devservers`
but none of its neighbours (in an installed squidbot those are all of the gateway's dependencies, in other
versions), so the package is put in place by hand instead of by a search path.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Make the package importable and run the module named by the first argument."""
    folder = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "devservers", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["devservers"] = package
    spec.loader.exec_module(package)
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
