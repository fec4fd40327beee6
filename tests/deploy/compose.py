"""`docker compose` on the tests' own engine, with images that stand in for those of the public registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.engine import BASE_IMAGE, Engine
from tests.deploy.images import ROOT, compose_plugin

STANDINS = ROOT / "tests" / "deploy" / "standins"


@dataclass(frozen=True, slots=True)
class Compose:
    """compose.yaml of this tree, or of another one, as a project of its own."""

    engine: Engine
    project: str = "squidtest"
    environment: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    folder: Path = ROOT

    def run(
        self, *arguments: str, check: bool = True, text: str | None = None, limit_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker compose`. With ``check`` a failure fails the test with what it said."""
        plugins = self.engine.folder / "client" / "cli-plugins"
        if not plugins.exists():
            plugins.mkdir(parents=True)
            shutil.copy(compose_plugin(), plugins / "docker-compose")
        chosen = [part for name in self.profiles for part in ("--profile", name)]
        done = subprocess.run(
            ["/usr/bin/docker", "compose", "--project-directory", str(self.folder), "-p", self.project,
             *chosen, *arguments],
            env={**self.engine.environment, "SQUIDBOT_HEALTH_INTERVAL": "2s", **self.environment}, input=text, capture_output=True, text=True,
            check=False, timeout=limit_s,
        )  # fmt: skip
        if check and done.returncode != 0:
            logs = "" if "logs" in arguments else self.run("logs", "--tail", "40", check=False).stdout
            raise AssertionError(
                f"docker compose {' '.join(arguments)}:\n{done.stderr[-3000:]}\n{logs[-6000:]}"
            )
        return done

    def squidbot(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        """Run a command of squidbot inside its container; gives what it prints."""
        return self.run("exec", "-T", "squidbot", "squidbot", *arguments, check=check, text=text).stdout


def build_standin(engine: Engine, name: str) -> str:
    """Build one of the images in ``standins``; gives its name."""
    engine.docker(
        "build", "--build-arg", f"BASE={BASE_IMAGE}", "--tag", f"standin-{name}",
        "--secret", f"id=pip_conf,src={engine.folder}/pip.conf",
        "--secret", f"id=ca_bundle,src={engine.folder}/ca.pem",
        str(STANDINS / name), limit_s=400,
    )  # fmt: skip
    return f"standin-{name}"


def own_secrets(folder: Path) -> dict[str, str]:
    """Passwords made by deploy/compose/make-secrets, and what tells compose.yaml where they are."""
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    subprocess.run(
        [str(ROOT / "deploy/compose/make-secrets"), str(folder)],
        check=True, env=environment, capture_output=True,
    )  # fmt: skip
    return {"LOCAL_SECRETS": str(folder), "SQUIDBOT_SECRETS": str(folder / "squidbot")}
