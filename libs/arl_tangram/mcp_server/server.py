"""The tools of `tangram mcp`, and the server that offers them over stdio or HTTP."""

import json
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any, Literal, ParamSpec

from mcp.server.auth.settings import AuthSettings
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolResult, TextContent, ToolAnnotations
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AnyHttpUrl, BaseModel, Field

from arl_tangram.adapters.environment_programs import AsyncEnvironmentPrograms, FileTransferError, ProgramOutput
from arl_tangram.mcp_server.sessions import ApiKeyVerifier, McpOptions, McpSessions, trajectory_in_address
from arl_tangram.operations import ActionFailed
from arl_wire.actions.action import Action
from arl_wire.errors import Conflict, NotFound, TangramError

__all__ = ["CommandResult", "build_server", "run_http", "run_stdio"]

Parameters = ParamSpec("Parameters")
Encoding = Literal["utf-8", "base64"]
MAX_REQUEST_BYTES = 32 << 20
"""Bytes of one HTTP request; the content of a written file is part of it."""
INSTRUCTIONS = (
    "The tools run in one sandbox, which exists for this session. Files are kept between calls; variables and"
    " background processes of a command are not. A result with `is_infrastructure` says nothing about the command: the"
    " sandbox failed, and not the command."
)
DISCOVER_METHOD = "server/discover"

Command = Annotated[str, Field(description="Shell command of any number of lines")]
Source = Annotated[str, Field(description="Python program. Each call starts a new interpreter")]
Directory = Annotated[str, Field(description="Directory of the command. Empty: the working directory")]
FilePath = Annotated[str, Field(description="Absolute, or relative to the working directory")]
RunSeconds = Annotated[float | None, Field(gt=0, le=86400, description="Maximum run time in seconds")]
FileEncoding = Annotated[Encoding, Field(description="`base64` for content that is not text")]


class CommandResult(BaseModel):
    """The structured result of a command."""

    outcome: str = Field(
        description="`ok`, `user_error` (exit code other than 0), `user_timeout` or `limit_exceeded`; with"
        " `is_infrastructure` the failure of the sandbox, such as `infra_error`"
    )
    is_infrastructure: bool = Field(description="True if the sandbox failed, and not the command")
    exit_code: int | None = Field(default=None, description="128 plus the number of the signal that ended the command")
    stdout: str = ""
    stderr: str = ""
    is_truncated: bool = Field(default=False, description="True if only the first MiB of an output is shown")
    message: str | None = Field(default=None, description="Reason of a timeout, a limit or a failure")
    action: str | None = Field(default=None, description="Id of the action, as in `tangram get ID`")


def build_server(sessions: McpSessions, options: McpOptions, **settings: Any) -> MCPServer[McpSessions]:
    """Return a server with all tools. `settings`: further arguments of `MCPServer`."""
    server: MCPServer[McpSessions] = MCPServer(
        "tangram",
        version=version("arl-tangram"),
        instructions=INSTRUCTIONS,
        lifespan=sessions.lifespan,
        log_level="WARNING",
        middleware=[_require_session],
        **settings,
    )
    _add_program_tools(server, options)
    _add_file_tools(server)
    return server


async def run_stdio(url: str, api_key: str, options: McpOptions) -> None:
    """Serve one session over stdin and stdout until stdin closes."""
    await build_server(McpSessions(url, api_key, options), options).run_stdio_async()


async def run_http(url: str, host: str, port: int, options: McpOptions) -> None:
    """Serve streamable HTTP at `/mcp`. Each client sends its own API key as a bearer token."""
    server = build_server(
        McpSessions(url, None, options),
        options,
        token_verifier=ApiKeyVerifier(url),
        auth=AuthSettings(issuer_url=AnyHttpUrl(url), resource_server_url=None),
    )
    await server.run_streamable_http_async(
        host=host,
        port=port,
        max_request_body_size=MAX_REQUEST_BYTES,
        session_idle_timeout=float(options.idle_ttl_s),
    )


async def _require_session(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Make a client of a protocol without sessions fall back to `initialize`, unless its address names a trajectory."""
    is_modern_http = ctx.request is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    if ctx.method == DISCOVER_METHOD and is_modern_http and trajectory_in_address(ctx) is None:
        raise MCPError(METHOD_NOT_FOUND, "Begin with `initialize`, or add ?trajectory=NAME to the address")
    return await call_next(ctx)


def _add_program_tools(server: MCPServer[McpSessions], options: McpOptions) -> None:
    @server.tool()
    @_report_failures
    async def run_command(
        context: Context[McpSessions], command: Command, cwd: Directory = "", timeout_s: RunSeconds = None
    ) -> Annotated[CallToolResult, CommandResult]:
        """Run a shell command in the sandbox and return its output and exit code."""
        argv = [options.shell, "-c", command]
        async with _programs(context) as programs:
            return _command_result(await programs.run(argv, cwd=cwd, timeout_s=timeout_s or options.timeout_s))

    @server.tool()
    @_report_failures
    async def run_python(
        context: Context[McpSessions], source: Source, timeout_s: RunSeconds = None
    ) -> Annotated[CallToolResult, CommandResult]:
        """Run a Python program in the sandbox and return what it prints."""
        async with _programs(context) as programs:
            action = await programs.environment.run(
                source=source, cpu=options.cpu, timeout_s=timeout_s or options.timeout_s
            )
        return _command_result(ProgramOutput.of(action))


def _add_file_tools(server: MCPServer[McpSessions]) -> None:
    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    @_report_failures
    async def read_file(
        context: Context[McpSessions], path: FilePath, encoding: FileEncoding = "utf-8"
    ) -> CallToolResult:
        """Return the content of a file in the sandbox."""
        async with _programs(context) as programs:
            content = await programs.read(path)
        if encoding == "base64":
            return _text_result(b64encode(content).decode())
        try:
            return _text_result(content.decode())
        except UnicodeDecodeError:
            raise ToolError(f"{path!r} is not text in UTF-8: read it with encoding `base64`") from None

    @server.tool()
    @_report_failures
    async def write_file(
        context: Context[McpSessions], path: FilePath, content: str, encoding: FileEncoding = "utf-8"
    ) -> CallToolResult:
        """Write a file in the sandbox and create its parent directories."""
        try:
            data = content.encode() if encoding == "utf-8" else b64decode(content, validate=True)
        except InvalidBase64 as error:
            raise ToolError(f"content: not base64: {error}") from None
        async with _programs(context) as programs:
            await programs.write(path, data)
        return _text_result(f"{len(data)} bytes written to {path}")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    @_report_failures
    async def list_files(
        context: Context[McpSessions],
        path: Annotated[str, Field(description="Directory below the working directory. Empty: all of it")] = "",
        recursive: bool = False,
    ) -> CallToolResult:
        """List the files below the working directory of the sandbox: type, size in bytes and path, one per line."""
        async with _programs(context) as programs:
            found = await programs.environment.files.list(path, recursive=recursive)
        lines = (f"{entry.type.value} {entry.size} {json.dumps(entry.path, ensure_ascii=False)}" for entry in found)
        return _text_result("\n".join(lines))


def _report_failures(
    tool: Callable[Parameters, Awaitable[CallToolResult]],
) -> Callable[Parameters, Awaitable[CallToolResult]]:
    """Report an infrastructure error as a result with `is_infrastructure`, and any other failure as a tool error."""

    @wraps(tool)
    async def reporting(*args: Parameters.args, **kwargs: Parameters.kwargs) -> CallToolResult:
        try:
            return await tool(*args, **kwargs)
        except ActionFailed as error:
            return _failure_result(str(error.action.outcome), str(error), error.action)
        except TangramError as error:
            # The environment of a session ends by itself only if it is lost, unused for too long or ended by another.
            if error.status >= 500 or isinstance(error, (Conflict, NotFound)):
                return _failure_result(error.code, error.detail, None)
            raise ToolError(f"{error.code}: {error.detail}") from error
        except FileTransferError as error:
            raise ToolError(str(error)) from error
        except OSError as error:  # of this machine, such as a full disk
            return _failure_result("internal", str(error), None)

    return reporting


@asynccontextmanager
async def _programs(context: Context[McpSessions]) -> AsyncIterator[AsyncEnvironmentPrograms]:
    """Provide the environment of the session, which stays open meanwhile."""
    request = context.request_context
    session = await request.lifespan_context.session_of(request)
    with session.call():
        yield await session.programs()


def _command_result(output: ProgramOutput) -> CallToolResult:
    stdout, stderr = (each.decode(errors="replace") for each in (output.stdout, output.stderr))
    action = output.action
    result = CommandResult(
        outcome=str(action.outcome),
        is_infrastructure=False,
        exit_code=None if output.timed_out else output.exit_code,
        stdout=stdout,
        stderr=stderr,
        is_truncated=output.truncated,
        message=action.message or action.reason,
        action=str(action.id),
    )
    end = f"[{action.outcome}: {result.message}]" if result.message else f"[exit code {output.exit_code}]"
    note = "[only the first MiB of the output is shown]\n" if output.truncated else ""
    parts = [part if part.endswith("\n") else f"{part}\n" for part in (stdout, stderr) if part]
    return _text_result("".join((*parts, note, end)), result)


def _failure_result(outcome: str, message: str, action: Action | None) -> CallToolResult:
    result = CommandResult(
        outcome=outcome,
        is_infrastructure=True,
        message=message,
        action=str(action.id) if action is not None else None,
    )
    failed = _text_result(f"[the sandbox failed, and not the command: {outcome}: {message}]", result)
    failed.is_error = True
    return failed


def _text_result(text: str, structured: BaseModel | None = None) -> CallToolResult:
    content = structured.model_dump(mode="json") if structured is not None else None
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=content)
