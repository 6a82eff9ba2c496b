"""Build the image and run the services of `docker/compose.yaml` from it, each in its own container."""

import asyncio
import json
import secrets
from pathlib import Path

import httpx
import pytest
import yaml

from support.compose import ComposeProject, limits, podman, running_project
from support.container_image import BASE, POSTGRES_OF_IMAGE, image_or_skip, missing_tool

DOCKER = Path(__file__).parents[2] / "docker"
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
STARTED = [name for name in SERVICES if name != "otel-collector"]
"""All services of all profiles. The image of the collector is in a registry; the scheduler works without it."""
CHECK = ("python", "-m", "arl_cpu.launcher", "--check", "namespaces")
IN_TEMPLATE = ("--", "sh", "-c", ". /etc/os-release && echo $VERSION_ID")
LISTED_S = 60.0
PAGES = ("readyz", "docs/")
SIGTERM_CODE = 143
"""Uvicorn raises SIGTERM again after it has shut down. A container that is killed has the code 137."""
PROGRAM = ("sh", "-c", "echo $((6 * 7))")
SCORED = ("Paris", "The capital of France is Paris.")
REPLACED = {"postgres": {**POSTGRES_OF_IMAGE, "environment": SERVICES["postgres"]["environment"]}}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_tool()), reason=str(missing_tool()))]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image once for this module; Podman caches the base and unchanged layers."""
    return image_or_skip(tmp_path_factory.mktemp("image"))


@pytest.fixture
def project(image: str, tmp_path: Path) -> ComposeProject:
    """The services of the compose file, with secrets as its first lines say."""
    password = tmp_path / "postgres_password"
    password.write_text(secrets.token_hex(32))
    password.chmod(0o644)  # as a shell makes it; the users of `postgres` and `provision` read it
    images = dict.fromkeys(("arl-tangram", SERVICES["postgres"]["image"]), image)
    (tmp_path / "endpoint-keys").mkdir()
    return ComposeProject(tmp_path, SERVICES, images, REPLACED)


async def test_services_of_the_image_run_an_action_and_a_score(project: ComposeProject, tmp_path: Path) -> None:
    async with running_project(project, STARTED):
        key = project.run("provision", "cat", "/state/api_key").strip()
        cli = {"TANGRAM_URL": "http://gateway:8700", "TANGRAM_API_KEY": key}
        nodes = json.loads(project.execute("gateway", "tangram", "nodes", "list", "-o", "json", environment=cli))
        submitted = project.execute("gateway", "tangram", "submit", "--", *PROGRAM, environment=cli)
        scored = project.execute("gateway", "tangram", "score", "minilm", *SCORED, environment=cli)
        async with httpx.AsyncClient() as client:
            pages = [await client.get(f"http://127.0.0.1:{project.published['8700']}/{path}") for path in PAGES]
        await import_template(project, cli, tmp_path / "image.tar")
        in_template = project.execute("gateway", "tangram", "submit", "--template", "py", *IN_TEMPLATE, environment=cli)
        checked = json.loads(project.execute("cpu-1-launcher", *CHECK))
        codes = {name: project.stop(name) for name in reversed(STARTED) if name != "provision"}
    assert {node["name"] for node in nodes["items"] if node["alive"]} == {"cpu-1", "cpu-2", "gpu-1", "api-1"}
    assert submitted == "42\n"
    assert in_template == "12\n"
    assert 0.5 < float(scored) < 1
    assert [page.status_code for page in pages] == [200, 200]
    assert {each["name"] for each in checked if each["level"] != "enforced"} == set()
    assert set(codes.values()) <= {0, SIGTERM_CODE}, codes


async def import_template(project: ComposeProject, cli: dict[str, str], archive: Path) -> None:
    """Import an image into a node with the command of docs/operate/docker.md, and wait until the node lists it."""
    podman("save", "--output", archive, BASE)
    command = "cat > /tmp/image.tar && tangram templates import /tmp/image.tar --name py; rm /tmp/image.tar"
    project.execute("cpu-1-launcher", "sh", "-c", command, stdin=archive)
    async with asyncio.timeout(LISTED_S):
        while '"py"' not in project.execute("gateway", "tangram", "nodes", "list", "-o", "json", environment=cli):
            await asyncio.sleep(0.2)


def test_user_of_the_image_has_the_group_that_managers_of_cpu_nodes_are_members_of(image: str) -> None:
    owners = ("stat", "--format=%u:%g", "/secrets/cpu-1", "/state")
    files = podman("run", "--rm", "--network=none", *limits(), image, *owners)
    assert files.stdout.split() == [f"10001:{SERVICES['cpu-1']['group_add'][0]}"] * 2
