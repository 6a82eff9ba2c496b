"""Lint and render the Helm chart, and check what it makes. Nothing here runs on a cluster.

`make test-helm` installs what this needs.
"""

import importlib
import importlib.util
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping
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
PORT_VARIABLE, SECRET_FIELDS = "TANGRAM_PORT", {"key", "secret_headers", "secret_query"}

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


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from (str(key), *_strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    else:
        yield str(value)


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


class TestSecurity:
    @every_value_set
    def test_only_the_launcher_has_rights(self, values: str) -> None:
        for name, container in rendered(values).containers():
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            if not name.endswith("/launcher"):
                assert context["allowPrivilegeEscalation"] is False, name
                assert context["capabilities"] == {"drop": ["ALL"]}, name
                assert "privileged" not in context, name

    @every_value_set
    def test_pods_are_confined_and_see_nothing_of_the_machine(self, values: str) -> None:
        for name, pod in rendered(values).pods():
            spec = pod["spec"]
            assert not {"hostPID", "hostIPC", "hostNetwork"} & set(spec), name
            assert spec["enableServiceLinks"] is False, name
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
            assert name.endswith("-cpu") or spec["securityContext"]["runAsNonRoot"] is True, name

    @every_value_set
    def test_only_the_job_has_a_token_of_the_api_server(self, values: str) -> None:
        chart = rendered(values)
        for name, pod in chart.pods():
            assert pod["spec"]["automountServiceAccountToken"] is name.endswith("-provision"), name
            assert (
                chart.named("ServiceAccount", pod["spec"]["serviceAccountName"])["automountServiceAccountToken"]
                is False
            )
        for role in chart.of_kind("Role"):
            assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"secrets"}
            unnamed = [rule["verbs"] for rule in role["rules"] if "resourceNames" not in rule]
            assert unnamed == [["create"]]
        assert not chart.of_kind("ClusterRole", "ClusterRoleBinding")

    def test_unprivileged_launcher_runs_in_a_user_namespace(self) -> None:
        [(_, pod)] = [each for each in rendered("unprivileged").pods() if each[0].endswith("-cpu")]
        launcher = dict(rendered("unprivileged").containers())["prod-tangram-cpu/launcher"]
        assert pod["spec"]["hostUsers"] is False
        assert "privileged" not in launcher["securityContext"]
        assert launcher["securityContext"]["procMount"] == "Unmasked"

    @every_value_set
    def test_objects_contain_no_secret(self, values: str) -> None:
        """The Job writes all Secrets, so the chart renders none."""
        chart = rendered(values)
        assert chart.of_kind("Secret") == []
        for _, container in chart.containers():
            for each in container["env"]:
                assert not re.search("TOKEN|PASSWORD|KEYS|DATABASE_URL", each["name"])
        shown = [text for each in chart.manifests if each["kind"] != "ConfigMap" for text in _strings(each)]
        assert not [text for text in shown if re.search(r"tk_\w{20}|postgresql://\S*:\S*@", text)]

    @every_value_set
    def test_pods_mount_the_secrets_of_their_own_service_only(self, values: str) -> None:
        for name, pod in rendered(values).pods():
            volumes = {
                each["name"]: each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each
            }
            assert set(volumes.values()) - {"endpoint-keys", "database", "prod-tangram-db-app"} <= {name}, name
            manager_sees = {
                each["name"] for container in pod["spec"]["containers"] for each in container["volumeMounts"]
            }
            assert "all-secrets" not in manager_sees, name


class TestNodes:
    @every_value_set
    def test_pods_of_nodes_have_a_guaranteed_quality_of_service(self, values: str) -> None:
        for name, container in rendered(values).containers():
            if name.partition("/")[0].rpartition("-")[2] in ("cpu", "gpu", "api"):
                assert container["resources"]["requests"] == container["resources"]["limits"], name
                assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name

    @every_value_set
    def test_nodes_drain_before_their_grace_period_ends(self, values: str) -> None:
        for node in rendered(values).of_kind("StatefulSet"):
            pod = node["spec"]["template"]["spec"]
            [manager] = pod["containers"]
            command = manager["lifecycle"]["preStop"]["exec"]["command"]
            assert node["spec"]["updateStrategy"] == {"type": "OnDelete"}
            assert pod["terminationGracePeriodSeconds"] >= int(command[-1]) + 30

    @every_value_set
    def test_launcher_starts_before_the_manager_and_stops_after_it(self, values: str) -> None:
        for name, pod in rendered(values).pods():
            if name.endswith("-cpu"):
                [launcher] = [each for each in pod["spec"]["initContainers"] if each["name"] == "launcher"]
                assert launcher["restartPolicy"] == "Always"
                socket = {each["name"]: each.get("value") for each in launcher["env"]}["TANGRAM_LAUNCHER_SOCKET"]
                assert launcher["startupProbe"]["exec"]["command"] == ["test", "-S", socket]

    def test_autoscaled_set_has_no_number_of_replicas(self) -> None:
        chart = rendered("autoscaled-large")
        assert "replicas" not in chart.named("StatefulSet", "prod-tangram-cpu")["spec"]
        assert chart.named("StatefulSet", "prod-tangram-gpu")["spec"]["replicas"] == 1

    def test_job_creates_credentials_for_every_pod_that_may_exist(self) -> None:
        config = json.loads(
            rendered("autoscaled-large").named("ConfigMap", "prod-tangram-provision")["data"]["config.json"]
        )
        assert config["nodes"] == {"cpu": {"pool": "default", "count": 500}, "gpu": {"pool": "default", "count": 8}}

    @every_value_set
    def test_at_most_one_cpu_and_gpu_node_runs_on_a_machine(self, values: str) -> None:
        for node in rendered(values).of_kind("StatefulSet"):
            if not node["metadata"]["name"].endswith("-api"):
                terms = node["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
                [term] = terms["requiredDuringSchedulingIgnoredDuringExecution"]
                assert term["topologyKey"] == "kubernetes.io/hostname"
                assert term["labelSelector"]["matchLabels"] == node["spec"]["selector"]["matchLabels"]


class TestNetwork:
    @every_value_set
    def test_ports_match_those_of_the_services(self, values: str) -> None:
        chart = rendered(values)
        for name, container in chart.containers():
            service = name.partition("/")[0].rpartition("-")[2]
            if ports := container.get("ports"):
                assert [each["containerPort"] for each in ports] == [PORTS[service]], name
                variables = {each["name"]: each.get("value") for each in container["env"]}
                assert variables[PORT_VARIABLE] == str(PORTS[service]), name
        for url in {
            text for each in chart.manifests for text in _strings(each) if re.match("http://.*-scheduler", text)
        }:
            assert url.endswith(f"-scheduler:{PORTS['scheduler']}")
            name = url.removeprefix("http://").partition(":")[0]
            assert chart.named("Service", name)["spec"]["ports"][0]["port"] == PORTS["scheduler"]

    @every_value_set
    def test_selectors_match_pods(self, values: str) -> None:
        chart = rendered(values)
        pods = [pod["metadata"]["labels"].items() for _, pod in chart.pods()]
        selectors = [each["spec"]["selector"] for each in chart.of_kind("Service")]
        selectors += [
            each["spec"]["selector"]["matchLabels"] for each in chart.of_kind("PodDisruptionBudget", "PodMonitor")
        ]
        for policy in chart.of_kind("NetworkPolicy"):
            selectors.append(policy["spec"]["podSelector"]["matchLabels"])
            rules = [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]
            peers = [peer for rule in rules for peer in (*rule.get("from", []), *rule.get("to", []))]
            selectors += [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer]
        ours = [each for each in selectors if "cnpg.io/cluster" not in each]
        unmatched = [each for each in ours if not any(each.items() <= labels for labels in pods)]
        assert [each for each in unmatched if each["app.kubernetes.io/component"] != "provision"] == []

    def test_only_scheduler_and_gateway_reach_cpu_nodes(self) -> None:
        assert callers_of("cpu") == {"scheduler", "gateway"}
        assert callers_of("gpu") == {"scheduler"}
        assert callers_of("api") == {"scheduler"}
        assert callers_of("admission") == {"gateway"}
        assert callers_of("scheduler") == {"gateway", "admission", "cpu", "gpu", "api"}

    def test_only_the_gateway_is_open_to_clients(self) -> None:
        for policy in rendered("minimal").of_kind("NetworkPolicy"):
            is_open = any("from" not in rule for rule in policy["spec"].get("ingress", []))
            assert is_open == policy["metadata"]["name"].endswith("-gateway")
        public = {each["spec"]["type"] for each in rendered("all-parts").of_kind("Service") if "type" in each["spec"]}
        assert public == {"LoadBalancer", "ClusterIP"}

    @every_value_set
    def test_every_pod_has_a_policy(self, values: str) -> None:
        chart = rendered(values)
        policies = [each["spec"]["podSelector"]["matchLabels"].items() for each in chart.of_kind("NetworkPolicy")]
        for name, pod in chart.pods():
            covered = any(labels <= pod["metadata"]["labels"].items() for labels in policies)
            assert covered or values == "without-nodes", name

    def test_cpu_nodes_reach_only_names_postgres_and_the_scheduler(self) -> None:
        egress = rendered("minimal").named("NetworkPolicy", "prod-tangram-cpu")["spec"]["egress"]
        assert [[port["port"] for port in rule["ports"]] for rule in egress] == [[53, 53], [8702], [5432]]


class TestServices:
    def test_scheduler_has_a_standby_and_survives_a_drain_of_its_machine(self) -> None:
        chart = rendered("minimal")
        assert chart.named("Deployment", "prod-tangram-scheduler")["spec"]["replicas"] == 2
        assert chart.named("PodDisruptionBudget", "prod-tangram-scheduler")["spec"]["minAvailable"] == 1

    def test_single_scheduler_does_not_block_a_drain_of_its_machine(self) -> None:
        names = [each["metadata"]["name"] for each in rendered("without-nodes").of_kind("PodDisruptionBudget")]
        assert "prod-tangram-scheduler" not in names

    def test_job_runs_before_the_services_unless_their_database_is_new(self) -> None:
        hooks = {
            values: rendered(values).named("Job", "prod-tangram-provision")["metadata"]["annotations"]["helm.sh/hook"]
            for values in ("minimal", "all-parts")
        }
        assert hooks == {"minimal": "pre-install,pre-upgrade", "all-parts": "post-install,pre-upgrade"}

    @every_value_set
    def test_notes_say_that_the_chart_was_not_run(self, values: str) -> None:
        assert "have not run it on a cluster" in rendered(values).notes


def callers_of(component: str) -> set[str]:
    """Return the components that may connect to this one."""
    policy = rendered("all-parts").named("NetworkPolicy", f"prod-tangram-{component}")
    peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"] if "podSelector" in peer]
    return {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers}
