"""The manifests for Kubernetes: what they promise, and that a cluster would take them."""

from __future__ import annotations

import copy
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from gateway.settings import Settings
from tests.deploy.images import ROOT

FOLDER = ROOT / "deploy/kubernetes"
MANIFESTS = [each for file in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]
VERSIONS = ["v1.25.0", "v1.37.0"]
LIVENESS = ["python", "-m", "gateway.operations.control.healthcheck"]


def _one(kind: str) -> dict[str, Any]:
    [found] = [each for each in MANIFESTS if each["kind"] == kind]
    return found


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


def test_nothing_local_is_the_truth() -> None:
    """Replicas without names or disks of their own; the home goes with the pod."""
    assert sorted(each["kind"] for each in MANIFESTS) == [
        "Deployment",
        "Job",
        "PodDisruptionBudget",
    ]
    [home] = [each for each in _pod(_one("Deployment"))["volumes"] if each["name"] == "home"]
    assert home == {"name": "home", "emptyDir": {}}


def test_a_stop_is_given_the_time_that_it_takes() -> None:
    """And one at a time, of the pods that the budget means."""
    deployment, budget = _one("Deployment"), _one("PodDisruptionBudget")
    assert _pod(deployment)["terminationGracePeriodSeconds"] > Settings().gateway.drain_seconds + 10
    assert deployment["spec"]["strategy"] == {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}}
    assert budget["spec"]["maxUnavailable"] == 1
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"] == budget["spec"]["selector"] == {"matchLabels": labels}


def test_only_readiness_asks_for_servers() -> None:
    """A restart brings no database back, and all pods would restart at once."""
    [container] = _pod(_one("Deployment"))["containers"]
    assert container["livenessProbe"]["exec"]["command"] == LIVENESS
    assert container["readinessProbe"]["exec"]["command"] == [*LIVENESS, "--ready"]
    assert [each["kind"] for each in MANIFESTS if "livenessProbe" in str(each)] == ["Deployment"]


def test_the_job_and_the_daemon_read_the_same_and_may_do_nothing_more() -> None:
    """Configuration, secrets and sandbox are the same; only the daemon is asked how it is."""
    daemon, job = (copy.deepcopy(_pod(_one(kind))) for kind in ("Deployment", "Job"))
    assert [each["name"] for each in daemon["volumes"]] == [each["name"] for each in job["volumes"]]
    [one], [other] = daemon["containers"], job["containers"]
    for name in ("image", "env", "securityContext", "volumeMounts"):
        assert one[name] == other[name]
    assert daemon["securityContext"] == job["securityContext"]
    assert one["securityContext"]["readOnlyRootFilesystem"] is True


@cache
def _wheel() -> zipfile.ZipFile:
    found = sorted((ROOT / ".cache/deploy/kubernetes").glob("kubernetes_validate-*.whl"))
    if not found:
        pytest.skip("the schemas of Kubernetes are not there (make service-test gets them from PyPI)")
    return zipfile.ZipFile(found[-1])


def _schema(version: str, name: str) -> Any:
    folder = f"kubernetes_validate/kubernetes-json-schema/{version}-local-strict"
    return json.loads(_wheel().read(f"{folder}/{name}.json"))


def _errors(manifest: dict[str, Any], version: str) -> list[str]:
    """What a server of this version would refuse, unknown keys among it."""
    group, _, number = manifest["apiVersion"].rpartition("/")
    schema = _schema(version, "-".join([manifest["kind"].lower(), group.partition(".")[0], number]))
    definitions = Resource.from_contents(_schema(version, "_definitions"))
    registry: Registry[Any] = Registry().with_resource("_definitions.json", definitions)
    return [error.message for error in Draft202012Validator(schema, registry=registry).iter_errors(manifest)]


@pytest.mark.deploy
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
def test_a_cluster_takes_it(manifest: dict[str, Any], version: str) -> None:
    assert _errors(manifest, version) == []


@pytest.mark.deploy
@pytest.mark.parametrize("version", VERSIONS)
def test_a_misspelt_or_wrong_key_is_found(version: str) -> None:
    """The control, deep inside."""
    misspelt, wrong = copy.deepcopy(_one("Deployment")), copy.deepcopy(_one("Deployment"))
    _pod(misspelt)["containers"][0]["readynessProbe"] = {}
    _pod(wrong)["terminationGracePeriodSeconds"] = "45s"
    assert "readynessProbe" in _errors(misspelt, version)[0]
    assert "45s" in _errors(wrong, version)[0]


def test_no_file_is_left_out() -> None:
    """What lies there is what was looked at."""
    assert {path.name for path in Path(FOLDER).iterdir()} == {"squidbot.yaml", "migrate.yaml"}
