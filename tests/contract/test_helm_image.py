"""Run the containers of the chart's pods from the image, with Podman in place of a cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="Helm is not installed: run `make test-image`")

from support.compose import ComposeProject, running_project
from support.container_image import POSTGRES_OF_IMAGE, image_or_skip, missing_tool
from support.helm_chart import rendered_values
from support.helm_pods import PodServices
from support.kubernetes_secrets import serving_secrets

POSTGRES: dict[str, Any] = {
    **POSTGRES_OF_IMAGE,
    "image": "arl-tangram",
    "environment": {
        "POSTGRES_USER": "tangram",
        "POSTGRES_DB": "tangram",
        "POSTGRES_PASSWORD_FILE": "/run/secrets/postgres_password",
        "POSTGRES_INITDB_ARGS": "--auth-host=scram-sha-256",
    },
    "secrets": ["postgres_password"],
    "shm_size": "256mb",
}
VALUES = {"database": {"existingSecret": "database"}, "cpu": {"cores": 1, "memoryMiB": 512, "drainSeconds": 20}}
NODE = "prod-tangram-cpu-0"
PODS = {f"prod-tangram-{name}": f"prod-tangram-{name}" for name in ("scheduler", "admission", "gateway")}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
SIGTERM_CODE = 143

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_tool()), reason=str(missing_tool()))]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[PodServices]:
    """The containers of Postgres and the Job. The others need the Secrets that the Job writes."""
    (tmp_path / "postgres_password").write_text("owner-password")
    (tmp_path / "postgres_password").chmod(0o644)
    project = ComposeProject(tmp_path, {}, {"arl-tangram": image_or_skip(tmp_path)})
    with serving_secrets(tmp_path, str(project.network[1])) as secrets:
        secrets.put("database", {"url": "postgresql://tangram:owner-password@postgres:5432/tangram"})
        pods = PodServices(rendered_values(VALUES), secrets, tmp_path / "pods", project)
        pods.services["postgres"] = POSTGRES
        pods.add_pod("prod-tangram-provision", "prod-tangram-provision")
        job = pods.services["prod-tangram-provision"]
        job["volumes"].append(f"{secrets.account}:{ACCOUNT}:ro")
        job["environment"] |= {
            "KUBERNETES_SERVICE_HOST": str(project.network[1]),
            "KUBERNETES_SERVICE_PORT": str(secrets.port),
        }
        yield pods


async def test_pods_of_the_chart_run_an_action_and_drain(pods: PodServices) -> None:
    project = pods.project
    async with running_project(project, ["postgres", "prod-tangram-provision"]):
        for workload, pod in {**PODS, "prod-tangram-cpu": NODE}.items():
            pods.add_pod(workload, pod)
        started = [*PODS, f"{NODE}.prepare", f"{NODE}.launcher", NODE]
        for name in started:
            await project.start(name)
        key = pods.secrets.content("prod-tangram-api-key")["api_key"]
        cli = {"TANGRAM_URL": "http://prod-tangram-gateway:8700", "TANGRAM_API_KEY": key}

        def tangram(*arguments: str) -> str:
            return project.execute("prod-tangram-gateway", "tangram", *arguments, environment=cli)

        [node] = json.loads(tangram("nodes", "list", "-o", "json"))["items"]
        submitted = tangram("submit", "--", "sh", "-c", "echo $((6 * 7))")
        project.execute(NODE, *pods.pre_stop("prod-tangram-cpu"))
        [drained] = json.loads(tangram("nodes", "list", "-o", "json"))["items"]
        codes = {name: project.stop(name) for name in reversed(started) if not name.endswith(".prepare")}
    assert (node["name"], node["alive"], node["driver"]) == (NODE, True, "namespaces")
    assert {each["name"] for each in node["enforced"] if each["level"] != "enforced"} == set()
    assert node["capacity"]["memory_mib"] == 512
    assert submitted == "42\n"
    assert (drained["cordoned"], drained["drained"]) == (True, True)
    assert set(codes.values()) <= {0, SIGTERM_CODE}, codes
