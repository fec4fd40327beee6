"""The rules of the house that a machine can see: directions, sizes, side effects, what comes into the environment."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent_core", "channels", "gateway")
SPLIT_AT, NEVER_ABOVE = 600, 700


def modules():
    """Every module of ours, by its dotted name."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] != "__main__":
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python(code, *arguments):
    """Run ``code`` in a clean process and give what it prints as JSON."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SQUIDBOT"))
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        cwd=ROOT,
        env=environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ── directions ──


def lint(cwd):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))",
        ],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(cwd), str(cwd / "deploy")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_imports_go_in_the_agreed_directions():
    """Layers, the narrow waist, one door per library, no cycles: `[tool.importlinter]` in pyproject.toml."""
    code, told = lint(ROOT)
    assert code == 0, told


def test_a_wrong_import_is_noticed(tmp_path):
    """The negative control: a small house with the same rules and one import in the wrong direction."""
    (tmp_path / "deploy").mkdir()
    for name in (*PACKAGES, "devservers"):
        folder = tmp_path / "deploy" / name if name == "devservers" else tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").touch()
    (tmp_path / "gateway" / "app.py").touch()
    (tmp_path / "agent_core" / "agent.py").write_text("def late():\n    import gateway.app\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.importlinter]\nroot_packages = ["agent_core", "channels", "gateway"]\n'
        '[[tool.importlinter.contracts]]\nname = "x"\ntype = "layers"\nlayers = ["gateway", "channels", "agent_core"]\n'
    )
    code, told = lint(tmp_path)
    assert code == 1
    assert "agent_core.agent -> gateway.app (l.2)" in told


# ── sizes ──


def sizes():
    roots = [ROOT / name for name in (*PACKAGES, "deploy", "tests")]
    return {path: len(path.read_text().splitlines()) for root in roots for path in sorted(root.rglob("*.py"))}


def test_no_file_is_too_long(capsys):
    """A file is one concept, split at about 600 lines; those beyond are listed and none passes 700."""
    too_long = {str(path.relative_to(ROOT)): lines for path, lines in sizes().items() if lines > NEVER_ABOVE}
    assert not too_long
    near = {str(path.relative_to(ROOT)): lines for path, lines in sizes().items() if lines > SPLIT_AT}
    if near:
        with capsys.disabled():
            print("\nto be split soon:", *(f"{path} ({lines})" for path, lines in near.items()), sep="\n  ")


def test_every_package_and_module_says_what_it_is_for():
    """Each file with code begins with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.read_text().strip() and not re.match(r'(#.*\n)*\s*r?"""', path.read_text())
    ]
    assert silent == []


def test_there_is_no_drawer_for_everything():
    """No utils, common or helpers."""
    names = {path.stem for package in PACKAGES for path in (ROOT / package).rglob("*")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


# ── importing ──

_IMPORT_ALL = """
import sys, os, threading, json, importlib, logging, signal, socket, subprocess
names = sys.argv[1:]
opened = []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        opened.append(str(arguments[0]))
    elif event in ("socket.connect", "socket.bind", "subprocess.Popen", "os.mkdir", "os.remove", "os.rename"):
        opened.append(f"{event} {arguments}")
handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
environ, cwd, threads, logs = dict(os.environ), os.getcwd(), threading.active_count(), len(logging.root.handlers)
sys.dont_write_bytecode = True
sys.addaudithook(watch)
failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = repr(error)
print(json.dumps({
    "failed": failed,
    "opened": [path for path in opened if not path.endswith(".pyc") and "__pycache__" not in path],
    "environ": sorted(set(dict(os.environ).items()) ^ set(environ.items())),
    "threads": threading.active_count() - threads,
    "log handlers": len(logging.root.handlers) - logs,
    "signals": [str(number) for number in handlers if signal.getsignal(number) != handlers[number]],
    "heavy": sorted({"litellm", "openai", "tiktoken", "tokenizers"} & set(sys.modules)),
}))
"""


@functools.cache
def imported():
    return python(_IMPORT_ALL, *modules())


def test_every_module_can_be_imported_by_itself_without_side_effects():
    """No file written, no socket, no thread, no handler, no change of the environment."""
    assert imported() == {
        "failed": {},
        "opened": [],
        "environ": [],
        "threads": 0,
        "log handlers": 0,
        "signals": [],
        "heavy": [],
    }


def test_a_module_with_a_side_effect_is_noticed(tmp_path):
    """The negative control of the test above."""
    (tmp_path / "noisy.py").write_text(
        "import os, threading; os.environ['NOISY'] = '1'\nopen('/dev/null', 'w').close()"
    )
    found = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_IMPORT_ALL}", "noisy")
    assert found["environ"] == [["NOISY", "1"]]
    assert found["opened"] == ["/dev/null"]


_ENTER_EACH = """
import importlib, json, os, sys
import anyio, pydantic, structlog
failed = []
for name in sys.argv[1:]:
    if not (child := os.fork()):
        importlib.import_module(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(json.dumps(failed))
"""


def test_each_package_can_be_entered_first():
    """No module works only because another of ours was imported before it (a few, each in a process of its own)."""
    first = "gateway.routing.access gateway.store.stores channels.base agent_core.prompt gateway.supervision.supervisor"
    assert python(_ENTER_EACH, *first.split()) == []
    assert python(_ENTER_EACH, "channels.nowhere") == ["channels.nowhere"]


def test_asking_for_help_loads_next_to_nothing():
    """The command line itself needs neither the event loop's libraries nor the settings."""
    loaded = python(
        "import sys, json, gateway.cli.commands\n"
        "print(json.dumps(sorted(n for n in ('aiohttp', 'pydantic', 'structlog', 'yaml', 'litellm') if n in sys.modules)))"
    )
    assert loaded == []


# ── what comes into the environment ──


def test_no_distribution_runs_code_at_every_start_of_the_interpreter():
    """A ``.pth`` file was how a poisoned release of a dependency stole keys; only our own editable one is known."""
    known = {"squidbot-gateway"}
    # Tools of development that are known to bring one, each looked at.
    known |= {"coverage", "setuptools", "distutils-precedence"}
    found = {
        distribution.metadata["Name"]: str(file)
        for distribution in metadata.distributions()
        for file in distribution.files or ()
        if str(file).endswith(".pth") and "/" not in str(file)
    }
    assert {name: file for name, file in found.items() if name.lower() not in known} == {}


def test_the_dangerous_releases_of_litellm_stay_out():
    """The floor and the hole in the requirement are written down once, and kept."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [requirement] = [one for one in project["project"]["dependencies"] if one.startswith("litellm")]
    assert "!=1.106.*" in requirement and ">=1.105.3" in requirement
    assert project["tool"]["uv"]["exclude-newer"]
