"""The client of ARL-Tangram. User code imports from this module only.

from arl_tangram import Tangram

with Tangram() as tangram:
    action = tangram.run(task="ai-coding", source="print(6 * 7)")
    print(action.ok, action.stdout)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arl_tangram.public import *  # noqa: F403
    from arl_tangram.public import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        """Import all names at the first use of one. The command line handles Ctrl-C before it imports them."""
        is_public = name.isidentifier() and not name.startswith("__")
        if name != "__all__" and (not is_public or find_spec(f"{__name__}.{name}") is not None):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # or it is a module of the package
        public = import_module(f"{__name__}.public")
        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(public, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module(f"{__name__}.public").__all__})
