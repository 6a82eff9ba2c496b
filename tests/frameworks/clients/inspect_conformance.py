"""Inspect's conformance suite of sandboxes with the sandbox `tangram`: `pytest inspect_conformance.py`."""

from collections.abc import AsyncIterator

import pytest_asyncio
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

TASK = "inspect-conformance"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
    kind = registry_find_sandboxenv("tangram")
    config = kind.config_deserialize({"task": TASK})
    environments = await kind.sample_init("conformance", config, {})
    yield environments["default"]
    await kind.sample_cleanup("conformance", config, environments, interrupted=False)
