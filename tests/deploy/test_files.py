"""What can be said about the files of a deployment without running anything of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.deploy.images import ROOT, compose_plugin

pytestmark = [pytest.mark.deploy]

DOCKERFILES = ["Dockerfile", "deploy/compose/mail/Dockerfile"]


@pytest.fixture
def hadolint() -> str:
    """The program."""
    found = shutil.which("hadolint") or shutil.which(ROOT / ".cache/deploy/hadolint/bin/hadolint")
    if found is None:
        pytest.skip("hadolint is not there (make service-test gets it from PyPI)")
    return found


@pytest.mark.parametrize("file", DOCKERFILES)
def test_a_dockerfile_is_clean(hadolint: str, file: str) -> None:
    """hadolint has nothing to say; what it may not say stands beside the line that it is about."""
    done = subprocess.run([hadolint, ROOT / file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_poor_dockerfile_is_found(hadolint: str, tmp_path: Path) -> None:
    """The control: the same file with a latest tag and a `cd`."""
    poor = tmp_path / "Dockerfile"
    poor.write_text(
        (ROOT / "Dockerfile").read_text() + "\nFROM debian\nRUN cd /tmp && apt-get install curl\n"
    )
    done = subprocess.run([hadolint, poor], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3006" in done.stdout


def _findings(folder: Path) -> subprocess.CompletedProcess[str]:
    """What zizmor has to say of workflows, without asking anybody."""
    program = shutil.which("zizmor") or shutil.which(ROOT / ".cache/deploy/zizmor/bin/zizmor")
    if program is None:
        pytest.skip("zizmor is not there (make service-test gets it from PyPI)")
    command = [program, "--offline", "--strict-collection", "--config", ROOT / ".github/zizmor.yml", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_workflows_are_clean() -> None:
    """They can be read, and nobody who opens an issue can run anything in them or take their tokens."""
    done = _findings(ROOT / ".github/workflows")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "change", [("run: make", "run: echo ${{ github.event.issue.title }} && make"), ("jobs:", "job:")]
)
def test_a_poor_workflow_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    """The control: one that runs what others write, and one that is none."""
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert change[0] in text
    (tmp_path / "poor.yml").write_text(text.replace(*change))
    assert _findings(tmp_path / "poor.yml").returncode != 0


@pytest.fixture(scope="module")
def workflow_schema() -> Draft7Validator:
    """What the forge takes as a workflow: every key, and what may stand there."""
    wheels = sorted((ROOT / ".cache/deploy/workflows").glob("check_jsonschema-*.whl"))
    if not wheels:
        pytest.skip("the schema of workflows is not there (make service-test gets it from PyPI)")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        schema = wheel.read("check_jsonschema/builtin_schemas/vendor/github-workflows.json")
    return Draft7Validator(json.loads(schema))


@pytest.mark.parametrize("name", ["tests.yml", "release.yml"])
def test_a_workflow_fits_the_schema_of_the_forge(workflow_schema: Draft7Validator, name: str) -> None:
    workflow = _workflow((ROOT / ".github/workflows" / name).read_text())
    assert [error.message for error in workflow_schema.iter_errors(workflow)] == []


@pytest.mark.parametrize(
    "change", [("runs-on:", "run-on:"), ("timeout-minutes: 20", "timeout-minutes: soon"), ("uses:", "use:")]
)
def test_a_workflow_that_does_not_fit_is_found(
    workflow_schema: Draft7Validator, change: tuple[str, str]
) -> None:
    """The control: keys that the forge does not know, and a value of the wrong kind."""
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert change[0] in text
    assert not workflow_schema.is_valid(_workflow(text.replace(*change)))


def _workflow(text: str) -> Any:
    """A workflow as the forge reads it; YAML 1.1 takes the key ``on`` for a truth value."""
    read = yaml.safe_load(text)
    return {"on" if key is True else key: value for key, value in read.items()}


def _quadlet(folder: Path, page: str) -> subprocess.CompletedProcess[str]:
    """What Podman's generator makes of the two files of the page."""
    path = "usr/libexec/podman/quadlet"
    program = shutil.which(f"/{path}") or shutil.which(ROOT / ".cache/deploy/quadlet" / path)
    if program is None:
        pytest.skip("Podman's generator is not there (make service-test gets it; Debian 12 has none)")
    container, volume = re.findall(r"^```ini\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (folder / "squidbot.container").write_text(container)
    (folder / "squidbot-home.volume").write_text(volume)
    environment = {**os.environ, "QUADLET_UNIT_DIRS": str(folder)}
    return subprocess.run(
        [program, "-dryrun", "-user"], env=environment, capture_output=True, text=True, check=False
    )


def test_the_quadlet_of_the_manual_becomes_a_service(tmp_path: Path) -> None:
    """Podman takes every line; the volume is made first, and a wrong configuration is not tried again."""
    done = _quadlet(tmp_path, (ROOT / "docs/podman.md").read_text())
    assert done.returncode == 0, done.stderr
    for part in ("squidbot-home-volume.service", "RestartPreventExitStatus=78", "--read-only", "--cap-drop"):
        assert part in done.stdout


def test_a_misspelt_key_of_a_quadlet_is_found(tmp_path: Path) -> None:
    """The control."""
    page = (ROOT / "docs/podman.md").read_text()
    done = _quadlet(tmp_path, page.replace("ReadOnly=", "ReadOnyl="))
    assert "ReadOnyl" in done.stderr


@pytest.mark.parametrize("file", DOCKERFILES)
def test_every_base_image_can_be_named_by_the_builder(file: str) -> None:
    """FROM goes through an ARG, so that a digest or an own registry needs no change of the file; no frontend is fetched."""
    lines = (ROOT / file).read_text().splitlines()
    assert all(line.split()[1].startswith("${") for line in lines if line.startswith("FROM "))
    assert not lines[0].startswith("# syntax")


def test_the_sandbox_is_tight(tmp_path: Path) -> None:
    """`systemd-analyze security` rates the exposure 1.5 or lower, and a unit without the sandbox higher."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = ROOT / "deploy/systemd/squidbot.service"
    command = [program, "security", "--offline=true", "--threshold=15"]
    told = subprocess.run([*command, unit], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    bare = tmp_path / "squidbot.service"
    bare.write_text("".join(f"{line}\n" for line in unit.read_text().splitlines() if "Private" not in line))
    assert subprocess.run([*command, bare], capture_output=True, check=False).returncode == 1


def _verified(folder: Path, text: str) -> str:
    """What systemd has to say of a template of which there is an instance."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    (folder / "squidbot@.service").write_text(text.replace("/opt/squidbot/bin/squidbot", "/bin/true"))
    return subprocess.run(
        [program, "verify", folder / "squidbot@one.service"], capture_output=True, text=True, check=False
    ).stderr


def test_the_unit_is_a_template_too(tmp_path: Path) -> None:
    """As squidbot@.service it has no fault, and each instance a home of its own; systemd exits 0 on a misspelt key."""
    unit = ROOT / "deploy/systemd/squidbot@.service"
    assert unit.resolve().name == "squidbot.service"
    text = unit.read_text()
    assert _verified(tmp_path, text) == ""
    assert "--home /var/lib/%N " in text and "StateDirectory=%N\n" in text
    # A folder inside of another's would be handed over with that, as credentials are taken from whole trees.
    assert [line for line in text.splitlines() if line.startswith("LoadCredential=")] == [
        "LoadCredential=squidbot:/etc/%N"
    ]
    assert "ProtectHom" in _verified(tmp_path, text.replace("ProtectHome=", "ProtectHom="))


def _compose(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Compose's own reading of the file; no engine is needed."""
    return subprocess.run(
        [str(compose_plugin()), "--project-directory", str(folder), *arguments],
        env={**os.environ, "SQUIDBOT_CONFIG": "./deploy/compose/scale.yaml", "SQUIDBOT_GATEWAYS": "3"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("profile", ["scale", "mail", "matrix", "model", "monitoring"])
def test_a_profile_is_understood(profile: str) -> None:
    done = _compose(ROOT, "--profile", profile, "config", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_two_homes_have_their_own_folders_and_one_server() -> None:
    """The example two-homes.yaml: only the database is shared."""
    done = _compose(
        ROOT, "-f", str(ROOT / "compose.yaml"), "-f", str(ROOT / "deploy/compose/two-homes.yaml"),
        "--profile", "homes", "--profile", "scale", "config", "--format", "json",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    services = json.loads(done.stdout)["services"]
    ann, bob = ({each["source"] for each in services[name]["volumes"]} for name in ("ann", "bob"))
    assert len(ann) == len(bob) == 3 and not ann & bob
    assert list(services["ann"]["depends_on"]) == list(services["bob"]["depends_on"]) == ["database"]


def test_a_misspelt_key_is_found(tmp_path: Path) -> None:
    """The control."""
    (tmp_path / "compose.yaml").write_text(
        (ROOT / "compose.yaml").read_text().replace("read_only", "readonly")
    )
    assert _compose(tmp_path, "--profile", "scale", "config", "--quiet").returncode != 0


def test_each_gateway_has_a_home_of_its_own() -> None:
    """They are like the service squidbot but for their number and the volume of the home; and wait for the tables."""
    services = yaml.safe_load(_compose(ROOT, "--profile", "scale", "config").stdout)["services"]
    one, more = services["squidbot"], services["gateway"]
    assert more["deploy"]["replicas"] == 3
    assert more["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    homes = [
        [volume.get("source") for volume in each["volumes"] if volume["target"] == "/var/lib/squidbot"]
        for each in (one, more)
    ]
    assert homes == [["state"], [None]]  # without a name each container has one of its own
    for name in ("profiles", "deploy", "volumes"):
        one.pop(name, None), more.pop(name)
    assert one == more


def test_the_configuration_of_the_profile_is_valid(tmp_path: Path) -> None:
    """With the secrets that make-secrets makes, the state key among them."""
    from gateway.settings import load_settings
    from tests.deploy.compose import own_secrets

    folder = Path(own_secrets(tmp_path / "secrets")["SQUIDBOT_SECRETS"])
    config = tmp_path / "squidbot.yaml"
    config.write_text((ROOT / "deploy/compose/scale.yaml").read_text())
    folder.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "secrets")
    (tmp_path / "moved").rename(tmp_path / "secrets")
    settings = load_settings(config)
    password = (tmp_path / "secrets/database-password").read_text().strip()
    assert settings.store_url == f"postgresql://squidbot:{password}@database/squidbot"
    assert settings.state_key == (tmp_path / "secrets/state-key").read_text().strip()
