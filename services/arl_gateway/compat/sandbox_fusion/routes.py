"""SandboxFusion's `/run_code`: `sandbox/server/sandbox_api.py` of bytedance/SandboxFusion, as its clients read it.

verl (`verl/utils/reward_score/sandbox_fusion`) waits 10 s longer than the program may take. It tries three times, and
retries only after a 504; any other failure counts as a failed test case. A call that is still queued or running
therefore gets 504 just before the client's timeout. The program continues, and the next try resumes the wait.
"""

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Coroutine
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, ValidationError

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome
from arl_gateway.blocking.code_runs import CodeRun, CodeRunner, CodeRunResult
from arl_gateway.compat.blocking_score import ACTION_HEADER, json_response
from arl_gateway.compat.sandbox_fusion.absolute_files import (
    collect_action,
    collected_files,
    is_absolute,
    missing_files_note,
    place_action,
)
from arl_gateway.compat.sandbox_fusion.languages import LANGUAGES, LanguageSpec
from arl_gateway.compat.target import RolloutRef, parse_target
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, Writer, WriterRoute, request_trace
from arl_kit.app import error_responses, validation_failed
from arl_kit.internal_api import cancel_on_disconnect
from arl_wire.actions.action import Action, Name, SubmitActionRequest, TemplateName
from arl_wire.errors import (
    DemandImpossible,
    FieldError,
    GatewayTimeout,
    TemplateNotFound,
    TooManyRequests,
    Unavailable,
    ValidationFailed,
)

__all__ = ["response_for", "router"]

CLIENT_WAITS_S = 10.0
"""Seconds that the client waits beyond the program's timeouts: `API_TIMEOUT` of verl."""
MARGIN_S = 2.0
CLIENT_TRIES = 3
RETRY_PAUSES_S = 5.0
"""Seconds of all pauses between tries: verl pauses 1 s and 2 s; the rest is margin."""
ADMISSION_RETRY_S = 20.0
"""Seconds to retry a call while admission has no room or Postgres is unavailable."""
MEMORY_MIB = 512
RETRIES = 2
IDLE_TTL_S = 60
"""Seconds until an unused compile environment ends, if this gateway dies before it deletes the environment."""
MAX_PREFIX = 90
CLIENT_FIELDS = {"source": "code", "fetch": "fetch_files", "timeout_s": "run_timeout"}
"""Our field names and the client's names for them."""
NOT_STARTED_PREFIX = "cannot run "
"""Prefix of the message of an action whose program does not exist in its environment."""

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class AdmissionRetryRoute(WriterRoute):
    """A route that retries temporary refusals before it returns 504. Its clients retry only after a 504."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it retries while admission has no room."""
        handle = super().get_route_handler()

        async def handle_patiently(request: Request) -> Response:
            """Handle the request. Retry temporary refusals for `ADMISSION_RETRY_S`, then raise `GatewayTimeout`."""
            ends_at = time.monotonic() + ADMISSION_RETRY_S
            while True:
                try:
                    return await handle(request)
                except (TooManyRequests, Unavailable) as error:
                    pause_s = error.retry_after_s or 1.0
                    if time.monotonic() + pause_s > ends_at:
                        raise GatewayTimeout(error.detail) from error
                await asyncio.sleep(pause_s)

        return handle_patiently


router = APIRouter(tags=["compatibility"], route_class=AdmissionRetryRoute)


class RunCodeRequest(BaseModel):
    """A program to run, with SandboxFusion's fields."""

    code: str
    language: str = Field(default="python", description=f"Language of the program: {', '.join(LANGUAGES)}")
    compile_timeout: Seconds = 10
    run_timeout: Seconds = 10
    memory_limit_MB: int = Field(default=-1, description=f"Memory limit in MiB; -1 means {MEMORY_MIB}")  # noqa: N815 - SandboxFusion's own
    stdin: str | None = None
    files: dict[str, str | None] = Field(
        default={},
        description="Files to write before the run: path to content in base64. "
        "Relative paths start in the working directory",
    )
    fetch_files: list[str] = Field(default=[], description="Paths of files to return. Missing files are left out")


class CommandRunResult(BaseModel):
    """The result of compiling or running the program."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = Field(
        default=None, description="Exit code of the program; the negative signal number if a signal ended it"
    )
    stdout: str = ""
    stderr: str = ""


class RunCodeResponse(BaseModel):
    """The results of a program."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = Field(default=None, description="Name of the node that ran the program")
    files: dict[str, str] = {}


class RunCodeParams(RolloutRef):
    """Parameters of a run from the query or from headers `tangram-…`."""

    task: Name = "run_code"
    template: TemplateName | None = None
    cpu: float = 1
    within: Seconds | None = None


@router.post(
    "/run_code",
    operation_id="sandbox_fusion_run_code",
    summary="Run a program (SandboxFusion)",
    response_model=RunCodeResponse,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, DemandImpossible, TemplateNotFound, GatewayTimeout),
)
async def run_code(body: RunCodeRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Run a program in a new sandbox, as SandboxFusion does.

    If the program takes too long, the call returns 504 and the program continues; send the same request again to wait.
    Parameters in the query or in headers `tangram-…`: `task`, `trajectory`, `step`, `template`, `cpu` and `within`.
    `within` is the number of seconds until a call gets 504. The default is 8 s longer than the program may take.
    """
    asked = parse_target(request, RunCodeParams)
    within_s = asked.within or body.compile_timeout + body.run_timeout + CLIENT_WAITS_S - MARGIN_S
    wanted = replace(
        _code_run_for(body, asked, deadline_s=CLIENT_TRIES * within_s + RETRY_PAUSES_S),
        key=await _resume_key(request, asked),
        size=len(await request.body()),
    )
    runs: CodeRunner = gateway_deps(request).code_runner
    ran = await cancel_on_disconnect(request, runs.run(wanted, caller, request_trace(request), within_s=within_s))
    last = ran.run or ran.compile or ran.place
    if last is not None:
        response.headers[ACTION_HEADER] = str(last.id)
    return json_response(response_for(ran, body).model_dump(), response)


def response_for(code_result: CodeRunResult, body: RunCodeRequest) -> RunCodeResponse:
    """Build the response for the settled actions of a request.

    Raises `GatewayTimeout` if the program did not start in time.
    """
    compiled, run = (None if each is None else _command_result(each) for each in (code_result.compile, code_result.run))
    results = [each for each in (compiled, run) if each is not None]
    failed = next((each for each in results if each.status == "Error"), None) or _copy_error(code_result)
    last = code_result.run or code_result.compile or code_result.place
    reply = RunCodeResponse(
        status="Success", compile_result=compiled, run_result=run, executor_pod_name=last and last.node
    )
    if code_result.run is not None and code_result.run.result is not None:
        reply.files = code_result.run.result.files
    if failed is not None:
        reply.status, reply.message = "SandboxError", failed.stderr
    elif any(each.status == "TimeLimitExceeded" or each.return_code for each in results):
        reply.status = "Failed"
    if not reply.message:
        reply.message = _truncation_note(code_result)
    if fetches := _absolute_fetches(body):
        _add_collected_files(reply, code_result, fetches)
    return reply


async def _resume_key(request: Request, params: RunCodeParams) -> bytes:
    """Return a key of the request: a hash of its body, parameters and request id."""
    beside = f"{params.model_dump_json()} {request.headers.get('x-request-id', '')}\n"
    return sha256(beside.encode() + await request.body()).digest()


def _code_run_for(body: RunCodeRequest, params: RunCodeParams, *, deadline_s: float) -> CodeRun:
    language = LANGUAGES.get(body.language)
    if language is None:
        message = f"language `{body.language[:64]}` is not supported. Available: {', '.join(LANGUAGES)}"
        raise ValidationFailed(message, errors=[FieldError(field="language", message=message)])
    common = {
        "task": params.task,
        "step": params.step,
        "demand": {"cpu": params.cpu, "memory_mib": body.memory_limit_MB if body.memory_limit_MB > 0 else MEMORY_MIB},
        "deadline_s": deadline_s,
        "retries": RETRIES,
    }
    run = {**common, **_program(body, language), "timeout_s": body.run_timeout}
    run |= {"stdin": body.stdin or "", "fetch": [path for path in body.fetch_files if not is_absolute(path)]}
    steps = _other_steps(body, language, run)
    if not steps:
        environment = {"template": params.template}
        return CodeRun(run=_action({**run, "trajectory": params.trajectory, "environment": environment}))
    of = {
        "trajectory": f"{(params.trajectory or params.task)[:MAX_PREFIX]}/{uuid4().hex}",
        "environment": {"scope": "trajectory", "template": params.template, "idle_ttl_s": IDLE_TTL_S},
        "idempotent": True,
    }
    others = {name: _action({**common, **of, **step}) for name, step in steps.items()}
    return CodeRun(
        run=_action({**run, **of}),
        place=others.get("place"),
        compile=others.get("compile"),
        collect=others.get("collect"),
    )


def _other_steps(body: RunCodeRequest, language: LanguageSpec, run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the steps beside the run, by their names in `CodeRun`. The files move from `run` to the compile step."""
    steps: dict[str, dict[str, Any]] = {}
    if placed := _absolute_files(body):
        steps["place"] = place_action(placed)
    if language.compile:
        steps["compile"] = {"argv": language.compile, "files": run.pop("files"), "timeout_s": body.compile_timeout}
    if collected := _absolute_fetches(body):
        steps["collect"] = collect_action(collected)
    return steps


def _absolute_files(body: RunCodeRequest) -> dict[str, str]:
    return {path: content for path, content in body.files.items() if is_absolute(path) and content is not None}


def _absolute_fetches(body: RunCodeRequest) -> list[str]:
    return [path for path in body.fetch_files if is_absolute(path)]


def _program(body: RunCodeRequest, language: LanguageSpec) -> dict[str, Any]:
    """Build the program's fields. Python code is not written to a file: a running interpreter reads it directly."""
    files = {path: content for path, content in body.files.items() if content is not None and not is_absolute(path)}
    if not language.run:
        return {"source": body.code, "files": files}
    code = (
        body.code
        if body.code.lstrip().startswith(language.required_prefix.strip())
        else language.required_prefix + body.code
    )
    files[language.file] = b64encode(code.encode()).decode()
    return {"argv": language.run, "files": files}


def _action(given: dict[str, Any]) -> SubmitActionRequest:
    """Build the action. Raises `ValidationFailed` with the client's field names."""
    try:
        return SubmitActionRequest.model_validate(given)
    except ValidationError as error:
        wrong: list[Any] = error.errors(include_url=False, include_input=False)
        raise validation_failed([{**each, "loc": _client_field(each["loc"])} for each in wrong]) from None


def _client_field(at: tuple[str | int, ...]) -> tuple[str | int, ...]:
    if at[:2] == ("demand", "memory_mib"):
        return ("memory_limit_MB",)
    if at[0] in ("demand", "environment"):
        return ("query", *at[1:2])
    return (CLIENT_FIELDS.get(str(at[0]), at[0]), *at[1:])


def _copy_error(code_result: CodeRunResult) -> CommandRunResult | None:
    """Return the error of writing or reading files with absolute paths, unless the program can cause it."""
    place, collect = code_result.place, code_result.collect
    if place is not None and place.outcome is not ActionOutcome.OK:
        why = _command_result(place).stderr.strip()
        return CommandRunResult(status="Error", stderr=why or f"the files were not written: {place.outcome}")
    if collect is not None and collect.outcome in MASKED_OUTCOMES:
        why = collect.message or collect.reason or str(collect.outcome)
        return CommandRunResult(status="Error", stderr=f"the files were not read: {collect.outcome}: {why}")
    return None


def _add_collected_files(reply: RunCodeResponse, code_result: CodeRunResult, paths: list[str]) -> None:
    """Add the files with absolute paths to the response of a program that ran. Say so if they could not be read."""
    reply.files |= collected_files(code_result.collect, paths)
    if code_result.run is not None and reply.status != "SandboxError":
        notes = (reply.message, missing_files_note(code_result.collect))
        reply.message = "; ".join(filter(None, notes))


def _truncation_note(code_result: CodeRunResult) -> str:
    """Describe which output was truncated, for clients that compare it."""
    result = code_result.run.result if code_result.run is not None else None
    streams = {"stdout": result.stdout, "stderr": result.stderr} if result is not None else {}
    cut = [f"{name} was truncated: it had {each.total_bytes} bytes" for name, each in streams.items() if each.truncated]
    return "; ".join(cut)


def _command_result(action: Action) -> CommandRunResult:
    """Convert an action to a result. An infrastructure error is an `Error`, never a failure of the program."""
    result = action.result
    why = action.message or action.reason or str(action.outcome)
    if action.outcome is ActionOutcome.DEADLINE_IN_QUEUE:
        raise GatewayTimeout(f"the program could not start in time and was dropped: {why}")
    if (
        result is None
        or action.outcome in (ActionOutcome.INFRA_ERROR, ActionOutcome.CANCELLED)
        or why.startswith(NOT_STARTED_PREFIX)
    ):
        return CommandRunResult(status="Error", stderr=f"{action.outcome}: {why}")
    if action.outcome is ActionOutcome.USER_ERROR and result.exit_code is None and result.signal is None:
        return CommandRunResult(status="Error", stderr=f"the program was not run: {why}")
    found = CommandRunResult(
        status="Finished", execution_time=action.times.run_s, stdout=result.stdout.text, stderr=result.stderr.text
    )
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        found.status = "TimeLimitExceeded"
        return found
    found.return_code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
    if action.outcome is ActionOutcome.LIMIT_EXCEEDED:
        found.return_code = found.return_code or 1
        found.stderr += f"\nlimit exceeded: {action.reason}\n"
    return found
