"""The Helm chart, rendered by Helm itself without a cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

__all__ = ["CHART", "VALUE_SETS", "RenderedChart", "rendered", "rendered_values"]

CHART = Path(__file__).parents[2] / "docker" / "helm" / "tangram"
RELEASE, NAMESPACE = "prod", "rl"

Manifest = Mapping[str, Any]

EXTERNAL = {"database": {"existingSecret": "database"}}
NO_NODES = {kind: {"enabled": False} for kind in ("cpu", "gpu", "api")}
ENDPOINT = {"url": "https://api.example.com/v1", "key_file": "/keys/search", "concurrency": 48, "rate_per_s": 10.5}
EVERYWHERE: list[dict[str, Any]] = [{"namespaceSelector": {}}]
VALUE_SETS: Mapping[str, dict[str, Any]] = {
    "minimal": EXTERNAL,
    "without-nodes": {**EXTERNAL, **NO_NODES, "networkPolicy": {"enabled": False}, "scheduler": {"replicas": 1}},
    "all-parts": {
        "database": {"cloudNativePG": {"enabled": True, "storageClass": "fast", "imageName": "postgres:18"}},
        "gateway": {
            "autoscaling": {"enabled": True},
            "ingress": {"enabled": True, "host": "tangram.example.com", "className": "nginx", "tlsSecret": "tls"},
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        },
        "scheduler": {"otlpEndpoint": "http://collector:4318", "env": {"TANGRAM_TRACE_ROUNDS": "true"}},
        "gpu": {"enabled": True, "gpus": 8, "image": {"repository": "arl-tangram-torch", "tag": "1"}},
        "api": {"enabled": True, "endpoints": {"search": ENDPOINT}, "keysSecret": "endpoint-keys"},
        "networkPolicy": {
            "clients": EVERYWHERE,
            "metrics": EVERYWHERE,
            "gpuEgress": [{"ports": [{"port": 8000}]}],
            "cpuEgress": [{"ports": [{"port": 443}]}],
        },
        "podMonitor": {"enabled": True, "gatewayKeySecret": "prometheus", "labels": {"release": "prometheus"}},
    },
    "unprivileged": {**EXTERNAL, "cpu": {"privileged": False, "driver": "namespaces", "pool": "small"}},
    "autoscaled-large": {
        **EXTERNAL,
        "cpu": {"externalScaling": True, "maxReplicas": 500, "cores": 190, "memoryMiB": 2_000_000},
        "gpu": {"enabled": True, "gpus": 0, "modelsVolume": {"persistentVolumeClaim": {"claimName": "models"}}},
        "networkPolicy": {"database": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]},
    },
    "own-secrets": {
        **EXTERNAL,
        "provision": {"enabled": False},
        "ipv6": True,
        "fullnameOverride": "t",
        "imagePullSecrets": [{"name": "registry"}],
        "image": {"repository": "registry.example.com/tangram", "digest": f"sha256:{'0' * 64}"},
        "cpu": {
            "templatesVolume": {"hostPath": {"path": "/srv/templates"}},
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "cpu", "operator": "Exists", "effect": "NoSchedule"}],
            "launcherEnv": {"TANGRAM_SANDBOX_POOL_SIZE": "32"},
            "runtimeClassName": "kata",
            "priorityClassName": "high",
        },
    },
}
"""Values of six installations by name."""


@dataclass(frozen=True, slots=True)
class RenderedChart:
    """The objects of one installation, and its notes."""

    manifests: tuple[Manifest, ...]
    notes: str

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [each for each in self.manifests if each["kind"] in kinds]

    def named(self, kind: str, name: str) -> Manifest:
        [found] = [each for each in self.of_kind(kind) if each["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """Return the name of each workload with its pod template."""
        for each in self.of_kind("Deployment", "StatefulSet", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]

    def containers(self) -> Iterator[tuple[str, Manifest]]:
        """Return all containers, with the name of their workload before their own."""
        for name, pod in self.pods():
            for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
                yield f"{name}/{container['name']}", container


@cache
def rendered(name: str) -> RenderedChart:
    """Render the chart with the values of this name."""
    return rendered_values(VALUE_SETS[name])


def rendered_values(values: Mapping[str, Any]) -> RenderedChart:
    """Render the chart. Raises the errors of Helm."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    texts = [text for path, text in files.items() if not path.endswith(".txt")]
    manifests = tuple(each for text in texts for each in yaml.safe_load_all(text) if each)
    return RenderedChart(manifests, files["tangram/templates/NOTES.txt"])
