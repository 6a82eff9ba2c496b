"""The Job of the chart: migrate the database, and write the credentials of services and nodes as Kubernetes Secrets.

It is `python -m arl_local.provision` with two differences. The state directory is the Secret `PREFIX-state`, which is
stored before the database learns of new passwords. Each node has credentials of its own, as a node that joined has
them: the node can drain itself, and `tangram nodes remove` ends them.
"""

import argparse
import asyncio
import json
import ssl
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPSConnection
from os import environ
from pathlib import Path

from arl_kit.settings import load_settings
from arl_local.credentials import NODE_KINDS, NodeIdentity, joined_node_secrets, node_token_master, service_secrets
from arl_local.process_plan import SERVICES
from arl_local.provision import ProvisionSettings
from arl_local.state_dir import StateDir
from arl_store.installation_repository import ForeignInstallation
from arl_store.logins import NodeLogin, node_role_url, role_url
from arl_store.migrate import can_create_roles, ensure_api_key, upgrade

PROJECT = "default"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_TIMEOUT_S = 30.0
MAX_SECRET_BYTES = 1 << 20
STATE_FILES = ("passwords/*", "tokens/*", "api_key", "metrics_token")
PLAIN_SERVICES = tuple(service for service in SERVICES if service not in NODE_KINDS)


class ApiServer:
    """The Secrets of this namespace, with the service account of the pod."""

    def __init__(self, account: Path, labels: Mapping[str, str]) -> None:
        self._token = account / "token"
        self._tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._path = f"/api/v1/namespaces/{(account / 'namespace').read_text().strip()}/secrets"
        self._labels = dict(labels)

    def read(self, name: str) -> dict[str, str] | None:
        """Return the content of a Secret, or None if it does not exist."""
        status, body = self._request("GET", f"{self._path}/{name}")
        if status == HTTPStatus.NOT_FOUND:
            return None
        data = self._checked(status, body, f"read the Secret {name}").get("data") or {}
        return {key: b64decode(content).decode() for key, content in data.items()}

    def write(self, name: str, content: Mapping[str, str]) -> None:
        """Create a Secret, or replace its content."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": name, "labels": self._labels},
            "data": {key: b64encode(text.encode()).decode() for key, text in content.items()},
        }
        if len(json.dumps(secret)) > MAX_SECRET_BYTES:
            raise SystemExit(f"the Secret {name} would be larger than 1 MiB: lower maxReplicas")
        status, body = self._request("PUT", f"{self._path}/{name}", secret)
        if status == HTTPStatus.NOT_FOUND:
            status, body = self._request("POST", self._path, secret)
        self._checked(status, body, f"write the Secret {name}")

    def _request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ.get("KUBERNETES_SERVICE_PORT", "443"))
        connection = HTTPSConnection(host, port, context=self._tls, timeout=REQUEST_TIMEOUT_S)
        try:
            headers = {"authorization": f"Bearer {self._token.read_text().strip()}", "content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @staticmethod
    def _checked(status: int, body: bytes, what: str) -> dict[str, dict[str, str]]:
        """Return the object. The error has the reason of the API server and nothing that was sent."""
        answer = json.loads(body or b"{}")
        if status >= HTTPStatus.BAD_REQUEST:
            raise SystemExit(f"the API server refuses to {what}: {status} {answer.get('reason', '')}")
        return dict(answer)


@dataclass(frozen=True, slots=True)
class ChartConfig:
    """Settings from the chart: the names of the Secrets and of the nodes."""

    prefix: str
    instance: str
    take_over: bool
    nodes: Mapping[str, Mapping[str, object]]
    """Nodes by kind: `pool`, and `count`, the number of pods that the set may have."""

    def identities(self) -> list[NodeIdentity]:
        """Return the nodes. Their names are those that a StatefulSet gives its pods."""
        return [
            NodeIdentity(kind, f"{self.prefix}-{kind}-{number}")
            for kind, values in self.nodes.items()
            for number in range(int(str(values["count"])))
        ]


def restore(state: StateDir, stored: Mapping[str, str]) -> None:
    """Write the files of the state directory from the Secret, whose keys have a dot in place of the slash."""
    state.create()
    for key, content in stored.items():
        path = state.path / key.replace(".", "/", 1)
        path.write_text(content)
        path.chmod(0o600)


def files_of(state: StateDir) -> dict[str, str]:
    """Return the content of the Secret from the files."""
    paths = [path for pattern in STATE_FILES for path in sorted(state.path.glob(pattern))]
    return {str(path.relative_to(state.path)).replace("/", ".", 1): path.read_text() for path in paths}


def create_secrets(state: StateDir, nodes: Sequence[NodeIdentity]) -> None:
    """Create all missing secrets."""
    state.api_key()
    node_token_master(state)
    for service in SERVICES:
        service_secrets(state, service)
    for name in (*PLAIN_SERVICES, *(node.file_name for node in nodes)):
        state.secret("passwords", name)


def login_of(state: StateDir, node: NodeIdentity, pool: str) -> NodeLogin:
    """Return the login of a node. The id of its credentials follows from its password, so it changes with it."""
    password = state.secret("passwords", node.file_name)
    credential_id = sha256(f"credential\n{password}".encode()).hexdigest()[:16]
    return NodeLogin(node.kind, node.name, password, credential_id, pool)


async def provision(owner_url: str, state: StateDir, config: ChartConfig) -> dict[str, dict[str, str]]:
    """Migrate the database. Return the content of each Secret by the end of its name."""
    nodes = config.identities()
    logins = [login_of(state, node, str(config.nodes[node.kind]["pool"])) for node in nodes]
    passwords = {service: state.secret("passwords", service) for service in PLAIN_SERVICES}
    if not await can_create_roles(owner_url):
        raise SystemExit("the owner of the database needs CREATEROLE: alter role OWNER createrole")
    await upgrade(owner_url, passwords, nodes=logins, take_over=config.take_over)
    await ensure_api_key(owner_url, PROJECT, state.api_key())
    contents: dict[str, dict[str, str]] = {
        service: _as_files(role_url(owner_url, service, password), service_secrets(state, service))
        for service, password in passwords.items()
    }
    contents |= {kind: {} for kind in config.nodes}
    for node, login in zip(nodes, logins, strict=True):
        secrets = joined_node_secrets(state, node, str(login.credential_id))
        files = _as_files(node_role_url(owner_url, login), secrets)
        contents[node.kind] |= {f"{node.name}.{name}": content for name, content in files.items()}
    return {**contents, "api-key": {"api_key": state.api_key()}, "metrics": {"token": state.metrics_token()}}


def _as_files(database_url: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the files of TANGRAM_SECRETS_DIR by name."""
    return {f"tangram_{name}": text for name, text in {"database_url": database_url, **secrets}.items()}


def main() -> None:
    """Run the Job. A repeated run changes no existing secret."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="directory in memory for the files of the state")
    parser.add_argument("--service-account", type=Path, default=SERVICE_ACCOUNT)
    chosen = parser.parse_args()
    settings = load_settings(ProvisionSettings)
    config = ChartConfig(**json.loads(chosen.config.read_text()))
    labels = {"app.kubernetes.io/instance": config.instance, "app.kubernetes.io/component": "provision"}
    api = ApiServer(chosen.service_account, labels)
    state = StateDir(chosen.state)
    stored = api.read(f"{config.prefix}-state") or {}
    restore(state, stored)
    create_secrets(state, config.identities())
    if (files := files_of(state)) != stored:
        api.write(f"{config.prefix}-state", files)
    try:
        contents = asyncio.run(provision(settings.owner_url, state, config))
    except (ForeignInstallation, RuntimeError) as error:
        raise SystemExit(str(error)) from None
    except OSError as error:
        raise SystemExit(f"Postgres is not reachable: {type(error).__name__}; the Job tries again") from None
    for name, content in contents.items():
        api.write(f"{config.prefix}-{name}", content)
    sys.stdout.write(f"migrated the database; wrote {len(contents)} Secrets\n")


if __name__ == "__main__":
    main()
