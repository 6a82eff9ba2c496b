"""The Python packages that verifiers import. They come with the services and not with the `python3` of sandboxes."""

import importlib.util
import os
from functools import cache
from pathlib import Path

from arl_cpu.contract.executor import NodeCapability

__all__ = ["CAPABILITY_NAME", "PLACE", "VARIABLE", "find_packages", "math_capability", "package_directory"]

VARIABLE = "TANGRAM_VERIFIER_PACKAGES"
"""Environment variable with the directory of the packages, for the launcher and for the programs of verifiers."""
PLACE = "/opt/tangram-packages"
"""Mount point of the directory in sandboxes that have a file tree of their own."""
CAPABILITY_NAME = "math_verifier"


@cache
def find_packages() -> str | None:
    """Return the directory in which this interpreter finds math-verify, or None."""
    found = importlib.util.find_spec("math_verify")
    return str(Path(found.origin).parent.parent) if found is not None and found.origin is not None else None


def package_directory() -> str | None:
    """Return the directory that this process was given."""
    return os.environ.get(VARIABLE)


def math_capability(*, is_installed: bool) -> NodeCapability:
    """Report whether sandboxes can import the packages of the verifier `math`."""
    if is_installed:
        return NodeCapability(name=CAPABILITY_NAME, level="enforced", mechanism="math-verify")
    return NodeCapability(
        name=CAPABILITY_NAME,
        level="absent",
        mechanism="none",
        reason="sandboxes cannot import math-verify, so items of the verifier `math` are `verifier_missing`",
        fix="install math-verify for the node's Python, where every user can read it",
    )
