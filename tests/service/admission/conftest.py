"""Provide an admission service on the module's database."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from arl_admission.service import AdmissionService
from arl_store.tx import PostgresStore
from support.admission import SETTINGS
from support.peers import RecordingPeers
from support.rows import store_of


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(shared: str) -> AsyncIterator[PostgresStore]:
    async with store_of(shared, "admission") as store:
        yield store


@pytest.fixture
def peers() -> RecordingPeers:
    return RecordingPeers()


@pytest.fixture
def admission(store: PostgresStore, peers: RecordingPeers) -> AdmissionService:
    return AdmissionService(store, peers, SETTINGS)
