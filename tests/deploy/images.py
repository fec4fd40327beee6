"""
The images of the tests: a Debian base made from packages, and squidbot's own, built with the real Dockerfile.

The base stands in for the public Python image where no registry of images can be reached. Its Python lies in
/usr instead of /usr/local; the environment that the Dockerfile makes hides the difference.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.deploy.engine import BASE_IMAGE, Engine

CANARY = "c4n4ry-of-the-build-secrets"
"""Stands in every secret that a build is given, so that it is found in a layer if it ever gets there."""

ROOT = Path(__file__).resolve().parents[2]
_CACHE = ROOT / ".cache" / "deploy"
_LINKS = (
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; cd "$1"/usr/local/bin && '
    "for n in python python3 python3.13; do ln -s /usr/bin/python3.13 $n; done; ln -s /usr/bin/pip3 pip"
)


def debian_base(extra: tuple[str, ...] = (), *, release: str = "trixie") -> Path:
    """A minimal Debian with its Python as a tar file, from packages; made once and kept."""
    name = "-".join(("base" if release == "trixie" else f"base-{release}", *extra))
    target = _CACHE / f"{name}.tar"
    if target.exists():
        return target
    _CACHE.mkdir(parents=True, exist_ok=True)
    packages = ("ca-certificates", "netbase", "tzdata", "python3", "python3-venv", "python3-pip", *extra)
    unfinished = target.with_suffix(".part.tar")
    done = subprocess.run(
        [
            "mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=Acquire::Languages "none"',
            *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")),
            f"--include={','.join(packages)}", f"--customize-hook={_LINKS if release == 'trixie' else 'true'}",
            release, str(unfinished), *_mirror(),
        ],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"mmdebstrap: {done.stderr[-3000:]}")
    unfinished.rename(target)
    return target


def compose_plugin() -> Path:
    """Docker's compose plugin: the installed one, or that of Debian 13, which runs on Debian 12 as well."""
    for folder in ("/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins"):
        if (installed := Path(folder) / "docker-compose").exists():
            return installed
    target = _CACHE / "docker-compose"
    if not target.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            done = subprocess.run(
                ["mmdebstrap", "--quiet", "--variant=extract", "--include=docker-compose", "trixie",
                 f"{scratch}/root", *_mirror()],
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            if done.returncode != 0:
                raise AssertionError(f"mmdebstrap: {done.stderr[-3000:]}")
            Path(scratch, "root/usr/libexec/docker/cli-plugins/docker-compose").rename(target)
    return target


def _mirror() -> list[str]:
    """The mirror that this machine itself installs from; none for the default."""
    for file in sorted(Path("/etc/apt").glob("sources.list*")) + sorted(
        Path("/etc/apt/sources.list.d").glob("*")
    ):
        if file.is_file():
            found = re.search(
                r"^(?:URIs:|deb)\s+(?:\[[^]]*\]\s+)?(https?://\S+)", file.read_text(), re.MULTILINE
            )
            if found:
                return [found.group(1)]
    return []


def import_base(engine: Engine) -> None:
    """Give the engine the base image under the public name."""
    engine.docker(
        "import", "-c", "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
        "-c", 'CMD ["python3"]', str(debian_base()), BASE_IMAGE,
    )  # fmt: skip


def certificates() -> Path:
    """The certificate authorities that this machine trusts, its own ones among them."""
    return Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt").resolve()


def index_missing(engine: Engine) -> str | None:
    """Why a build could not fetch packages: what pip says in a container of the base; None if it can."""
    bundle = engine.folder / "probe.pem"
    bundle.write_text(certificates().read_text())
    tried = engine.docker(
        "run", "--rm", "--volume", f"{bundle}:/ca.pem:ro", "--env", "PIP_CERT=/ca.pem", BASE_IMAGE,
        "pip", "download", "--quiet", "--no-deps", "--dest", "/tmp", "idna", limit_s=90, check=False,
    )  # fmt: skip
    return None if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["no answer"])[-1]


def index_settings(engine: Engine) -> dict[str, str]:
    """What a person behind a private certificate authority gives a build, as variables of compose.yaml."""
    bundle = f"# {CANARY}\n{certificates().read_text()}"
    conf = f"# {CANARY}\n[global]\ncert = /run/secrets/ca_bundle\n"
    files = {"pip.conf": conf, "uv.toml": f"# {CANARY}\n", "ca.pem": bundle}
    for name, text in files.items():
        (engine.folder / name).write_text(text)
    variables = ("PIP_CONF", "UV_TOML", "CA_BUNDLE")
    return {variable: str(engine.folder / name) for variable, name in zip(variables, files, strict=True)}


def build_image(engine: Engine, name: str = "squidbot", *, context: Path = ROOT) -> str:
    """Build the Dockerfile as a person behind a private certificate authority does; returns the log."""
    given = index_settings(engine)
    secrets = [f"--secret=id={variable.lower()},src={path}" for variable, path in given.items()]
    done = engine.docker("build", "--progress=plain", "--tag", name, *secrets, str(context), limit_s=600)
    return done.stderr


def published(target: Path) -> None:
    """This tree, as it is now, as the one commit of a repository that can be cloned."""
    tree = target.with_suffix(".tree")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    who = ["-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "as it is"]):
        subprocess.run(["git", *who, "-C", str(tree), *words], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(tree), str(target)], check=True)
    shutil.rmtree(tree)
