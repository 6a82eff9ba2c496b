"""Lint and render the Helm chart, and check what it makes. Nothing here runs on a cluster.

`make test-helm` installs what this needs.
"""

import importlib
import importlib.util
import itertools
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from arl_api.settings import EndpointSettings
from arl_cpu.launcher.__main__ import _SETTINGS as LAUNCHER_SETTINGS
from arl_kit.settings import ServiceSettings
from arl_kit.telemetry.otel import OtelSettings
from arl_local.env_routing import FORWARDED_SETTINGS
from arl_local.provision import ProvisionSettings

helm_python = pytest.importorskip("helm_python", reason="Helm is not installed: run `make test-helm`")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed: run `make test-helm`")

from support.helm_chart import CHART, VALUE_SETS, RenderedChart, rendered, rendered_values  # noqa: E402

pytestmark = pytest.mark.slow

KUBERNETES = ("1.33", "1.35", "1.37")
CUSTOM_KINDS = {"Cluster", "PodMonitor"}
"""Kinds of operators, which have no schema in Kubernetes."""
SERVICES = ("gateway", "admission", "scheduler", "cpu", "gpu", "api")
PORTS = {name: 8700 + number for number, name in enumerate(SERVICES)}
CONTAINER_VARIABLES = {"TANGRAM_SECRETS_DIR", "POD_IP"}
"""Variables that no settings model declares: the directory of the secrets, and one that another variable contains."""
SECRET_FIELDS = {"key", "secret_headers", "secret_query"}

every_value_set = pytest.mark.parametrize("values", VALUE_SETS)


def settings_of(container: str) -> set[str]:
    """Return the variables that the program of a container reads."""
    workload, _, name = container.partition("/")
    service = workload.rpartition("-")[2]
    if name == "launcher":
        return set(LAUNCHER_SETTINGS)
    if name == "prepare":
        return {"TANGRAM_NODE_NAME"}
    if name == "provision":
        return _variables(ProvisionSettings)
    module = importlib.import_module(f"arl_{service}.settings")
    [model] = [each for each in _classes(module) if issubclass(each, ServiceSettings)]
    return _variables(model) | (_aliases() if service == "scheduler" else set())


def _classes(module: Any) -> list[type]:
    return [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]


def _variables(model: Any) -> set[str]:
    return {f"TANGRAM_{name.upper()}" for name in model.model_fields}


def _aliases() -> set[str]:
    return set(re.findall(r"OTEL_[A-Z_]+", str(OtelSettings.model_fields)))


class TestRendering:
    @every_value_set
    @pytest.mark.parametrize("version", KUBERNETES)
    def test_lint_finds_nothing(self, values: str, version: str) -> None:
        report = helm_python.lint(CHART, VALUE_SETS[values], strict=True, kube_version=f"v{version}.0")
        assert report["errors"] == []
        assert [each["error"] for each in report["messages"]] == ["icon is recommended"]

    @every_value_set
    @pytest.mark.parametrize("version", KUBERNETES)
    def test_objects_match_the_schemas_of_kubernetes(self, values: str, version: str) -> None:
        unknown = set()
        for manifest in rendered(values).manifests:
            try:
                kubernetes_validate.validate(dict(manifest), version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                unknown.add(manifest["kind"])
        assert unknown <= CUSTOM_KINDS

    @every_value_set
    def test_objects_have_unique_names_of_at_most_63_characters(self, values: str) -> None:
        names = [(each["kind"], each["metadata"]["name"]) for each in rendered(values).manifests]
        assert len(names) == len(set(names))
        assert max(len(name) for _, name in names) <= 63

    def test_schema_checks_find_a_misspelt_field(self) -> None:
        manifest = json.loads(json.dumps(rendered("minimal").named("Deployment", "prod-tangram-gateway")))
        manifest["spec"]["template"]["spec"]["enableServiceLink"] = False
        with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
            kubernetes_validate.validate(manifest, KUBERNETES[0], strict=True)

    def test_value_sets_render_every_template(self) -> None:
        with helm_python.Chart.load(CHART) as chart:
            templates = {each["name"] for each in chart.templates if each["name"].endswith(".yaml")}
            files = [chart.render(values, name="prod", namespace="rl") for values in VALUE_SETS.values()]
        empty = {path for path in templates if not any("kind:" in each.get(f"tangram/{path}", "") for each in files)}
        assert empty == set()


class TestValues:
    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"gatway": {}}, "gatway"),
            ({"gateway": {"replicas": "two"}}, "/gateway/replicas"),
            ({"gateway": {"service": {"type": "Public"}}}, "/gateway/service/type"),
            ({"scheduler": {"env": {"LOG_LEVEL": "DEBUG"}}}, "LOG_LEVEL"),
            ({"gateway": {"env": {"TANGRAM_SERVICE_TOKEN": "s" * 32}}}, "TANGRAM_SERVICE_TOKEN"),
            ({"cpu": {"cores": 0.5}}, "/cpu/cores"),
            ({"cpu": {"driver": "docker"}}, "/cpu/driver"),
            ({"cpu": {"manager": {"gpu": "1"}}}, "/cpu/manager"),
            ({"cpu": {"snapshotsVolume": {"emptyDir": {}, "hostPath": {"path": "/a"}}}}, "/cpu/snapshotsVolume"),
            ({"cpu": {"templatesVolume": {"emptyDirectory": {}}}}, "emptyDirectory"),
            ({"gpu": {"gpus": -1}}, "/gpu/gpus"),
            ({"api": {"endpoints": {"search": {"url": "https://a.b", "key": "secret"}}}}, "key"),
            ({"database": {"port": 70000}}, "/database/port"),
            ({"image": {"digest": "latest"}}, "/image/digest"),
            ({"networkPolicy": {"clients": [{"ip": "10.0.0.1"}]}}, "/networkPolicy/clients"),
        ],
    )
    def test_wrong_value_is_refused_with_the_name_of_the_field(self, values: dict[str, Any], named: str) -> None:
        with pytest.raises(helm_python.HelmError) as refused:
            rendered_values({**VALUE_SETS["minimal"], **values})
        assert named in str(refused.value)

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"database": {}}, r"database\.existingSecret: set the name"),
            ({"database": {"existingSecret": "a", "cloudNativePG": {"enabled": True}}}, r"database\.existingSecret"),
            ({"cpu": {"replicas": 17}}, r"cpu\.replicas: 17 is more than cpu\.maxReplicas, 16"),
            ({"gateway": {"ingress": {"enabled": True}}}, r"gateway\.ingress\.host"),
            ({"gateway": {"autoscaling": {"enabled": True, "minReplicas": 11}}}, r"autoscaling\.minReplicas"),
            ({"fullnameOverride": "n" * 41}, "fullnameOverride"),
        ],
    )
    def test_values_that_contradict_each_other_are_refused(self, values: dict[str, Any], named: str) -> None:
        with pytest.raises(helm_python.HelmError, match=named):
            rendered_values({**VALUE_SETS["minimal"], **values})

    def test_schema_describes_every_default_value(self) -> None:
        """Objects whose keys the user chooses are empty by default."""
        schema = json.loads((CHART / "values.schema.json").read_text())
        with helm_python.Chart.load(CHART) as chart:
            defaults = chart.values
        assert set(schema["properties"]) - {"global"} == set(defaults)
        for name, part in schema["properties"].items():
            if "properties" in part:
                assert part["additionalProperties"] is False, name
                assert set(part["properties"]) == set(defaults[name]), name

    def test_endpoints_have_the_settings_of_the_broker_except_secrets(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())
        assert set(schema["$defs"]["endpoint"]["properties"]) == set(EndpointSettings.model_fields) - SECRET_FIELDS


class TestPrograms:
    @every_value_set
    def test_variables_are_settings_of_their_service(self, values: str) -> None:
        for name, container in rendered(values).containers():
            unknown = {each["name"] for each in container["env"]} - settings_of(name) - CONTAINER_VARIABLES
            assert not unknown, name

    @every_value_set
    def test_settings_are_accepted_by_their_service(self, values: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Secrets and what the kubelet inserts are replaced."""
        monkeypatch.setattr("arl_gpu.settings.find_spec", lambda name: name)
        monkeypatch.setattr(EndpointSettings, "with_key", lambda self: self)  # the files of keys are in the pod
        for name, container in rendered(values).containers():
            service = name.partition("/")[0].rpartition("-")[2]
            if name.endswith(("/launcher", "/prepare", "/provision")):
                continue
            module = importlib.import_module(f"arl_{service}.settings")
            [model] = [each for each in _classes(module) if issubclass(each, ServiceSettings)]
            for each in container["env"]:
                monkeypatch.setenv(each["name"], each.get("value", "10.0.0.1").replace("$(POD_IP)", "10.0.0.1"))
            monkeypatch.delenv("TANGRAM_SECRETS_DIR")
            settings = model(database_url="postgresql://d", service_token="t" * 16)
            assert settings.port == PORTS[service]
            for each in container["env"]:
                monkeypatch.delenv(each["name"], raising=False)

    def test_variables_of_the_launcher_are_those_that_users_may_set(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())
        names = {f"TANGRAM_{name.upper()}" for name in FORWARDED_SETTINGS["cpu-launcher"]}
        assert set(schema["$defs"]["launcherEnv"]["propertyNames"]["enum"]) == names

    @every_value_set
    def test_commands_exist(self, values: str) -> None:
        for name, container in rendered(values).containers():
            commands = [container["command"]]
            if "preStop" in container.get("lifecycle", {}):
                commands.append(container["lifecycle"]["preStop"]["exec"]["command"])
            commands += (
                [container["startupProbe"]["exec"]["command"]] if "exec" in container.get("startupProbe", {}) else []
            )
            for command in commands:
                self.check(name, rendered(values), command, container)

    def check(self, name: str, chart: RenderedChart, command: list[str], container: Mapping[str, Any]) -> None:
        assert command[0] == "python" or shutil.which(command[0]), name
        modules = [after for before, after in itertools.pairwise(command) if before == "-m"]
        assert all(importlib.util.find_spec(module) for module in modules), name
        scripts = [Path(part) for part in command if part.startswith("/chart/")]
        assert modules or scripts or command[0] in ("test", "sleep"), name
        for script in scripts:
            pod = dict(chart.pods())[name.partition("/")[0]]
            assert "/chart" in {each["mountPath"] for each in container["volumeMounts"]}, name
            [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "chart"]
            content = chart.named("ConfigMap", volume["configMap"]["name"])["data"][script.name]
            if script.suffix != ".json":
                assert content == (CHART / "files" / script.name).read_text()

    @every_value_set
    def test_volumes_of_containers_exist_and_all_volumes_are_used(self, values: str) -> None:
        for name, pod in rendered(values).pods():
            containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
            used = {each["name"] for container in containers for each in container["volumeMounts"]}
            assert used == {each["name"] for each in pod["spec"]["volumes"]}, name
            assert all(len(each) == 2 for each in pod["spec"]["volumes"]), name  # the name and one source
