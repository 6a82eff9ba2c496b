"""`python -m arl_local.provision`, for installations that start their services themselves, for example in containers.

It migrates the database and writes the secrets of each service as files for TANGRAM_SECRETS_DIR. Secrets are created
once and stored in the state directory; another run changes no existing secret.
"""

import argparse
import asyncio
import json
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from arl_kit.settings import load_settings
from arl_local.database import provision_database
from arl_local.process_plan import ALLOWED_CALLERS, SERVICES
from arl_local.state_dir import StateDir
from arl_store.files import replace_file
from arl_store.installation_repository import ForeignInstallation

__all__ = ["ProvisionSettings", "write_service_secrets"]


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


async def write_service_secrets(owner_url: str, state: StateDir, target: Path, *, take_over: bool = False) -> None:
    """Write a directory for each service below `target`, readable by its owner only.

    The first API key is in the state directory.
    """
    state.create()
    urls = await provision_database(owner_url, state, take_over=take_over)
    for service in SERVICES:
        caller_token_hashes = {
            who: sha256(state.secret("tokens", who).encode()).hexdigest() for who in ALLOWED_CALLERS[service]
        }
        own = target / service
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(own / "tangram_database_url", urls[service])
        replace_file(own / "tangram_service_token", state.secret("tokens", service))
        replace_file(own / "tangram_caller_token_hashes", json.dumps(caller_token_hashes))


def _main() -> None:
    parser = argparse.ArgumentParser(description="Migrate the database and write each service's secrets.")
    parser.add_argument("--state", type=Path, required=True, help="directory of the secrets")
    parser.add_argument("--to", type=Path, required=True, help="directory that receives one directory per service")
    parser.add_argument("--take-over", action="store_true", help="use a database that another state directory owns")
    chosen = parser.parse_args()
    settings = load_settings(ProvisionSettings)
    try:
        asyncio.run(
            write_service_secrets(settings.owner_url, StateDir(chosen.state), chosen.to, take_over=chosen.take_over)
        )
    except ForeignInstallation as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    _main()
