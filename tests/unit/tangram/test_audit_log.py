"""Pages of the audit log that the SDK reads, without network."""

import json

from arl_tangram.operations import SdkRequest, SdkResponse
from arl_tangram.resources import admin_operations as admin

NEWEST = 2500
ENTRY = {"at": "2026-03-02T09:15:00Z", "verb": "key.create", "target": "key:1", "detail": {}}


def page_for(request: SdkRequest) -> SdkResponse:
    first = int(request.query.get("before", NEWEST + 1)) - 1
    last = first - int(request.query["limit"])
    items = [{**ENTRY, "id": id} for id in range(first, last, -1)]
    return SdkResponse(200, json.dumps({"items": items, "next_before": last + 1}).encode())


def test_audit_log_reads_pages_until_the_limit() -> None:
    operation = admin.list_audit_log(limit=1001, before=None, verb="key.create", project=None, retry_timeout_s=1)
    queries, response = [], None
    while True:
        try:
            request = operation.send(response)
        except StopIteration as end:
            entries = end.value
            break
        assert isinstance(request, SdkRequest)
        queries.append(request.query)
        response = page_for(request)
    assert [each.id for each in entries] == list(range(NEWEST, NEWEST - 1001, -1))
    assert queries == [{"verb": "key.create", "limit": 1000}, {"verb": "key.create", "before": 1501, "limit": 1}]
