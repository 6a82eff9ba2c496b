"""Rules for the objects of the Helm chart: rights, secrets, network policies, nodes.

`make test-helm` installs what this needs.
"""

import json
import re
from collections.abc import Iterator, Mapping

import pytest

pytest.importorskip("helm_python", reason="Helm is not installed: run `make test-helm`")

from support.helm_chart import VALUE_SETS, rendered

pytestmark = pytest.mark.slow

SERVICES = ("gateway", "admission", "scheduler", "cpu", "gpu", "api")
PORTS = {name: 8700 + number for number, name in enumerate(SERVICES)}

every_value_set = pytest.mark.parametrize("values", VALUE_SETS)


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
        shown = [text for each in chart.manifests if each["kind"] != "ConfigMap" for text in all_strings(each)]
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
                assert variables["TANGRAM_PORT"] == str(PORTS[service]), name
        for url in {
            text for each in chart.manifests for text in all_strings(each) if re.match("http://.*-scheduler", text)
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


def all_strings(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from (str(key), *all_strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from all_strings(each)
    else:
        yield str(value)
