"""The packages of `examples/` as their users have them: wheels, installed beside squidbot."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
from pathlib import Path

from tests.daemon import REPOSITORY

UV = shutil.which("uv") or str(REPOSITORY / ".cache" / "uv" / "bin" / "uv")
NO_UV = "there is no uv, which builds the wheels"


def environment_with(folder: Path, *names: str) -> str:
    """Build these packages; return the Python of an environment that has them, and all that ours has."""
    offline = ("--offline", "--no-config", "--cache-dir", str(folder / "cache"))
    for name in names:
        source = folder / name
        shutil.copytree(REPOSITORY / "examples" / name, source)
        _run(UV, "build", "--wheel", *offline, "--out-dir", str(folder / "dist"), str(source))
    environment = folder / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    made = environment / "bin" / "python"
    [ours] = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    [theirs] = environment.glob("lib/python*/site-packages")
    (theirs / "squidbot.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    wheels = map(str, sorted((folder / "dist").glob("*.whl")))
    _run(UV, "pip", "install", *offline, "--no-index", "--no-deps", "--python", str(made), *wheels)
    return str(made)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
