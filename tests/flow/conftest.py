"""Fixtures for tests that run their own system per module."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from support.system import System

OPENAI = ("openai==3.54.0", "jiter==0.19.0", "sniffio==1.3.1")


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api


@pytest.fixture(scope="session")
def openai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the OpenAI client into its own directory, without its dependencies."""
    directory = tmp_path_factory.mktemp("openai")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory)
    found = subprocess.run((*pip, *OPENAI), capture_output=True, text=True, check=False, timeout=120)
    if found.returncode != 0:
        pytest.skip(f"OpenAI's client could not be installed: {found.stderr[-300:]}")
    return directory
