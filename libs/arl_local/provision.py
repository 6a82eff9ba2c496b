"""`python -m arl_local.provision`, for installations that start their services themselves, for example in containers.

It migrates the database and writes the secrets of each service and each node as files for TANGRAM_SECRETS_DIR. Each
node (`--node KIND:NAME`) has its own database role. Secrets are created
once and stored in the state directory; another run changes no existing secret.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from arl_kit.settings import load_settings
from arl_local.credentials import NODE_KINDS, NodeIdentity, service_secrets
from arl_local.database import provision_database
from arl_local.process_plan import SERVICES
from arl_local.state_dir import StateDir
from arl_store.files import replace_file
from arl_store.installation_repository import ForeignInstallation

__all__ = ["ProvisionSettings", "parse_node", "write_service_secrets"]

MAX_NODE_NAME = 128


class ProvisionSettings(BaseSettings):
    """The settings from `TANGRAM_*` environment variables or from files of TANGRAM_SECRETS_DIR."""

    model_config = SettingsConfigDict(env_prefix="TANGRAM_", frozen=True, extra="ignore")

    database_url: SecretStr = Field(description="postgresql://… of the owner of the database")
    database_password: SecretStr | None = Field(default=None, description="The owner's, where the URL has none")

    @property
    def owner_url(self) -> str:
        url = self.database_url.get_secret_value()
        if self.database_password is None:
            return url
        parts = urlsplit(url)
        user, _, place = parts.netloc.rpartition("@")
        password = quote(self.database_password.get_secret_value().strip(), safe="")
        return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{password}@{place}"))


async def write_service_secrets(
    owner_url: str,
    state: StateDir,
    target: Path,
    nodes: Sequence[NodeIdentity],
    *,
    group_readable: bool = False,
    take_over: bool = False,
) -> None:
    """Write a directory for each service and each node below `target`, readable by its owner only, or by its group.

    The directory of a node has the node's name. The first API key is in the state directory.
    """
    state.create()
    nodes_by_name = {node.name: node for node in nodes}
    urls = await provision_database(owner_url, state, nodes_by_name, take_over=take_over)
    for name, url in urls.items():
        node = nodes_by_name.get(name)
        secrets = service_secrets(state, node.kind if node else name, node_name=node.name if node else None)
        own = target / name
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        own.chmod(0o750 if group_readable else 0o700)
        for setting, secret in {"database_url": url, **secrets}.items():
            path = own / f"tangram_{setting}"
            replace_file(path, secret)
            path.chmod(0o640 if group_readable else 0o600)


def parse_node(text: str) -> NodeIdentity:
    """Parse `KIND:NAME`. The name is also that of a directory. Raises ValueError."""
    kind, _, name = text.partition(":")
    if kind not in NODE_KINDS:
        raise ValueError(f"{text}: must be KIND:NAME with a kind of {', '.join(NODE_KINDS)}")
    if not name or name in SERVICES or "/" in name or name.startswith(".") or len(name) > MAX_NODE_NAME:
        raise ValueError(f"{text}: the name must not be empty, a service, longer than 128 characters or have '/'")
    return NodeIdentity(kind, name)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Migrate the database and write each service's secrets.")
    parser.add_argument("--state", type=Path, required=True, help="directory of the secrets")
    parser.add_argument("--to", type=Path, required=True, help="directory that receives one directory per service")
    parser.add_argument("--take-over", action="store_true", help="use a database that another state directory owns")
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="KIND:NAME",
        help="a node, by its kind (cpu, gpu or api) and its TANGRAM_NODE_NAME; repeat it for each node",
    )
    parser.add_argument("--group-readable", action="store_true", help="let the group of the files read the secrets")
    chosen = parser.parse_args()
    settings = load_settings(ProvisionSettings)
    try:
        nodes = [parse_node(text) for text in chosen.node]
        asyncio.run(
            write_service_secrets(
                settings.owner_url,
                StateDir(chosen.state),
                chosen.to,
                nodes,
                group_readable=chosen.group_readable,
                take_over=chosen.take_over,
            )
        )
    except (ForeignInstallation, ValueError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    _main()
