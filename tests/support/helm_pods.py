"""Pods of the rendered chart as services of a compose file, so that Podman can run their containers.

Users, capabilities, read-only file systems, environment, commands and volumes are those of the pods. What a cluster
adds is replaced: addresses are those of the containers, and volumes are directories with the owners and modes that the
kubelet gives them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.compose import ComposeProject
from support.helm_chart import RenderedChart
from support.kubernetes_secrets import FakeSecrets

__all__ = ["PodServices"]

PROBE = "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{path}', timeout=2)"
NO_GROUP = 0


@dataclass
class PodServices:
    """The services of one installation. `directory` has the volumes."""

    chart: RenderedChart
    secrets: FakeSecrets
    directory: Path
    project: ComposeProject
    services: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project.services = self.services

    def pre_stop(self, workload: str) -> list[str]:
        """Return the command that the kubelet runs before it stops the main container."""
        [container] = dict(self.chart.pods())[workload]["spec"]["containers"]
        command: list[str] = container["lifecycle"]["preStop"]["exec"]["command"]
        return command

    def add_pod(self, workload: str, pod_name: str) -> None:
        """Add a service for each container: the main one has the name of the pod, others `POD.CONTAINER`."""
        pod = dict(self.chart.pods())[workload]
        spec = pod["spec"]
        self._create_volumes(pod_name, spec)
        earlier: list[str] = []
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            is_main = container in spec["containers"]
            name = pod_name if is_main else f"{pod_name}.{container['name']}"
            depends = {each: {} for each in earlier}
            self.services[name] = self._service(pod_name, spec, container) | {"depends_on": depends}
            earlier.append(name)

    def _service(self, pod_name: str, spec: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
        rights = {**spec["securityContext"], **container["securityContext"]}
        capabilities = rights.get("capabilities", {})
        service: dict[str, Any] = {
            "image": "arl-tangram",
            "command": container["command"],
            "user": f"{rights['runAsUser']}:{rights['runAsGroup']}",
            "group_add": [str(rights["fsGroup"])] if "fsGroup" in rights else [],
            "read_only": rights["readOnlyRootFilesystem"],
            "privileged": rights.get("privileged", False),
            "cap_drop": capabilities.get("drop", ()),
            "cap_add": capabilities.get("add", ()),
            "security_opt": ["no-new-privileges:true"] if rights.get("allowPrivilegeEscalation") is False else [],
            "environment": {each["name"]: self._value(each, pod_name) for each in container["env"]},
            "volumes": [
                f"{self.directory / pod_name / each['name']}:{each['mountPath']}{':ro' if each.get('readOnly') else ''}"
                for each in container["volumeMounts"]
            ],
            "stop_grace_period": "30s",
        }
        if test := self._probe(container):
            service["healthcheck"] = {"test": ["CMD", *test]}
        return service

    @staticmethod
    def _value(variable: Mapping[str, Any], pod_name: str) -> str:
        paths = {"metadata.name": pod_name, "status.podIP": pod_name}
        if "valueFrom" in variable:
            return paths[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        return str(variable["value"]).replace("$(POD_IP)", pod_name)

    @staticmethod
    def _probe(container: Mapping[str, Any]) -> list[str]:
        if "readinessProbe" in container:
            path, port = container["readinessProbe"]["httpGet"]["path"], container["ports"][0]["containerPort"]
            return ["python", "-c", PROBE.format(port=port, path=path)]
        return list(container.get("startupProbe", {}).get("exec", {}).get("command", ()))

    def _create_volumes(self, pod_name: str, spec: Mapping[str, Any]) -> None:
        group = spec["securityContext"].get("fsGroup", NO_GROUP)
        for volume in spec["volumes"]:
            directory = self.directory / pod_name / volume["name"]
            directory.mkdir(parents=True)
            if "emptyDir" in volume:
                directory.chmod(0o777)
                continue
            mode = volume.get("secret", {}).get("defaultMode", 0o644)
            for name, content in self._files(volume).items():
                (directory / name).write_text(content)
                os.chown(directory / name, 0, group)
                (directory / name).chmod(mode)
            directory.chmod(0o755)

    def _files(self, volume: Mapping[str, Any]) -> Mapping[str, str]:
        if "secret" in volume:
            content = self.secrets.content(volume["secret"]["secretName"])
            items = volume["secret"].get("items", [{"key": key, "path": key} for key in content])
            return {each["path"]: content[each["key"]] for each in items}
        data: Mapping[str, str] = self.chart.named("ConfigMap", volume["configMap"]["name"])["data"]
        return data
