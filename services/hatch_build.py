"""Build hook of the distribution arl-tangram-server: adds the packages of libs/ and the migrations to the wheel."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = ("arl_bench", "arl_engines", "arl_kit", "arl_local", "arl_node", "arl_sim", "arl_store", "arl_trace")


class ServerWheelHook(BuildHookInterface[Any]):
    """Includes directories that lie outside the project's folder.

    The static table `force-include` would also copy them into the environment of an editable install, where the copies
    would hide the checkout.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the directories unless the build is an editable one."""
        if version == "editable":
            return
        checkout = Path(self.root).parent
        included = {str(checkout / "libs" / name): name for name in LIBRARIES}
        build_data["force_include"] |= included | {str(checkout / "migrations"): "arl_store/migrations"}
