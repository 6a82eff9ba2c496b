"""The networks that clients may give to environments and actions, within the limit of the operator."""

import json
from collections.abc import Mapping
from typing import Literal

from arl_store.tx import Row
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.environments.network import NetworkAllowList, NetworkSetting
from arl_wire.errors import FieldError, ValidationFailed

__all__ = ["PACKAGE_MIRRORS", "NetworkPolicies", "network_from_row", "network_to_json"]

NetworkLimit = Literal["none", "allow", "open"]
_ORDER = ("none", "allow", "open")
PACKAGE_MIRRORS = "package-mirrors"
_DEFAULT_POLICIES: Mapping[str, NetworkAllowList] = {
    PACKAGE_MIRRORS: NetworkAllowList(
        allow=[
            *("pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "registry.yarnpkg.com", "crates.io"),
            *("index.crates.io", "static.crates.io", "proxy.golang.org", "sum.golang.org", "rubygems.org"),
            *("repo.maven.apache.org", "repo1.maven.org", "conda.anaconda.org", "repo.anaconda.com"),
            *("deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"),
            *("dl-cdn.alpinelinux.org",),
        ]
    )
}


class NetworkPolicies:
    """The named policies and the limit."""

    def __init__(self, limit: NetworkLimit = "allow", named: Mapping[str, NetworkAllowList] | None = None) -> None:
        self._limit = limit
        self._named = {**_DEFAULT_POLICIES, **(named or {})}

    def resolve(self, setting: NetworkSetting) -> NetworkSetting:
        """Replace the name of a policy by its list. Raises ValidationFailed for an unknown name or above the limit."""
        if isinstance(setting, str) and setting not in ("none", "open"):
            if setting not in self._named:
                raise _invalid(
                    f"{setting!r} is not a network policy. Available: none, open, {', '.join(sorted(self._named))}; or"
                    ' give {"allow": ["HOST", ...]}'
                )
            setting = self._named[setting]
        mode = "allow" if isinstance(setting, NetworkAllowList) else setting
        if _ORDER.index(mode) > _ORDER.index(self._limit):
            allowed = "`none` only" if self._limit == "none" else "`none`, a policy or a list of hosts"
            raise _invalid(
                f"{mode!r} exceeds the limit of this system: use {allowed}, or ask the operator to raise"
                " TANGRAM_NETWORK_MAX"
            )
        return setting

    def resolve_action(self, action: SubmitActionRequest) -> SubmitActionRequest:
        """Return the action with its network resolved. Raises ValidationFailed."""
        if action.network is None:
            return action
        return action.model_copy(update={"network": self.resolve(action.network)})

    def widest(self) -> NetworkSetting:
        """Return the network of clients that ask for all of the Internet without a choice."""
        return "open" if self._limit == "open" else "none"


def network_from_row(row: Row) -> NetworkSetting:
    """Return the network of an environment's row."""
    found = json.loads(row.network) if row.network is not None else "none"
    return found if isinstance(found, str) else NetworkAllowList.model_validate(found)


def network_to_json(setting: NetworkSetting) -> str | None:
    """Return the value of the column."""
    if setting == "none":
        return None
    return setting.model_dump_json() if isinstance(setting, NetworkAllowList) else json.dumps(setting)


def _invalid(message: str) -> ValidationFailed:
    return ValidationFailed(f"network: {message}", errors=[FieldError(field="network", message=message)])
