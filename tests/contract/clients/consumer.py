"""Use a generated client: `python consumer.py URL KEY` prints its observations as one JSON object."""

import json
import sys

from httpx import Timeout
from tangram_client import AuthenticatedClient
from tangram_client.api.actions import list_actions, submit_action, wait_for_actions
from tangram_client.models import (
    Action,
    ActionListResponse,
    ActionResult,
    AmdahlElasticity,
    CpuRange,
    DemandSpec,
    ProblemDetails,
    SubmitActionRequest,
    SubmitActionRequestKind,
    SubmitActionRequestLabels,
    WaitRequest,
    WaitResponse,
)
from tangram_client.types import UNSET, Unset

TASK = "python"


def squared(n: int) -> SubmitActionRequest:
    return SubmitActionRequest(
        task=TASK,
        kind=SubmitActionRequestKind.EXEC,
        argv=["python3", "-c", f"print({n} ** 2)"],
        demand=DemandSpec(cpu=CpuRange(min_=0.5, max_=1), memory_mib=64),
        elasticity=AmdahlElasticity(model="amdahl", parallel_fraction=0.5),
        labels=SubmitActionRequestLabels.from_dict({"n": str(n)}),
    )


def submitted(client: AuthenticatedClient, n: int) -> str:
    accepted = submit_action.sync(client=client, body=squared(n), idempotency_key=f"python-{n}")
    assert isinstance(accepted, Action), accepted
    return str(accepted.id)


def settled(client: AuthenticatedClient, ids: list[str]) -> list[Action]:
    done: list[Action] = []
    while ids:
        answer = wait_for_actions.sync(client=client, body=WaitRequest.from_dict({"ids": ids, "timeout_s": 30}))
        assert isinstance(answer, WaitResponse), answer
        done += answer.settled
        ids = [str(id) for id in answer.pending]
    return done


def listed(client: AuthenticatedClient) -> list[str]:
    found: list[str] = []
    cursor: str | Unset = UNSET
    while True:
        page = list_actions.sync(client=client, task=TASK, limit=2, cursor=cursor)
        assert isinstance(page, ActionListResponse), page
        found += [str(action.id) for action in page.items]
        if isinstance(page.next_cursor, Unset):
            return found
        cursor = page.next_cursor


def refused(client: AuthenticatedClient) -> ProblemDetails:
    impossible = squared(0)
    impossible.demand = DemandSpec(memory_mib=1)
    problem = submit_action.sync(client=client, body=impossible)
    assert isinstance(problem, ProblemDetails), problem
    return problem


def result_of(action: Action) -> ActionResult:
    assert isinstance(action.result, ActionResult), action
    return action.result


def printed(action: Action) -> tuple[str, str]:
    assert not isinstance(action.labels, Unset)
    stdout = result_of(action).stdout
    assert not isinstance(stdout, Unset)
    assert isinstance(stdout.text, str)
    return action.labels["n"], stdout.text


def main(url: str, key: str) -> None:
    client = AuthenticatedClient(base_url=url, token=key, timeout=Timeout(60))
    ids = [submitted(client, n) for n in (2, 3, 4)]
    again = submitted(client, 2)
    done = settled(client, ids)
    problem = refused(client)
    assert not isinstance(problem.errors, Unset)
    seen = {
        "ids": ids,
        "again": again,
        "outcomes": [action.outcome for action in done],
        "printed": dict(printed(action) for action in done),
        "exit_codes": [result_of(action).exit_code for action in done],
        "listed": listed(client),
        "problem": {
            "code": problem.code,
            "status": problem.status,
            "fields": [error.field for error in problem.errors],
        },
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
