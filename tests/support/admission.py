"""Settings of an admission service without a scheduler, and items as the gateway sends them."""

from hashlib import sha256
from typing import Any
from uuid import UUID

from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_wire.internal.admission import AdmitItem
from support.builders import a_submission
from support.rows import Rows

__all__ = ["SETTINGS", "admitted", "an_item"]

SETTINGS = AdmissionSettings(port=1, database_url="postgresql://", service_token="t" * 16, scheduler_url="http://s")


def an_item(rows: Rows, *, key: str | None = None, **changed: Any) -> AdmitItem:
    """Return an item of the project in `rows`; `key` is its idempotency key."""
    action = a_submission(**changed)
    body_hash = sha256(action.model_dump_json().encode()).hexdigest() if key else None
    return AdmitItem(project_id=rows.project, action=action, key=key, body_hash=body_hash)


async def admitted(admission: AdmissionService, *items: AdmitItem) -> list[UUID]:
    """Admit the items, none of which is refused, and return the ids of their actions."""
    answers = (await admission.admit(items)).items
    assert [answer.problem for answer in answers] == [None] * len(items)
    return [answer.id for answer in answers if answer.id is not None]
