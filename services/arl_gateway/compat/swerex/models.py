"""Requests and responses of SWE-ReX's clients: `swerex/runtime/abstract.py` of SWE-agent/SWE-ReX, version 1.4.0."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, RootModel

from arl_wire.validation import validate_unicode

__all__ = [
    "SwerexBashAction",
    "SwerexBashInterruptAction",
    "SwerexBashObservation",
    "SwerexCloseResponse",
    "SwerexCloseSessionRequest",
    "SwerexCloseSessionResponse",
    "SwerexCreateSessionRequest",
    "SwerexCreateSessionResponse",
    "SwerexErrorResponse",
    "SwerexExceptionTransfer",
    "SwerexExecuteRequest",
    "SwerexExecuteResponse",
    "SwerexIsAliveResponse",
    "SwerexReadFileRequest",
    "SwerexReadFileResponse",
    "SwerexRunInSessionRequest",
    "SwerexUploadResponse",
    "SwerexWriteFileRequest",
    "SwerexWriteFileResponse",
]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SessionName = Annotated[str, Field(description="Name of a session that `create_session` opened")]


class SwerexIsAliveResponse(BaseModel):
    """The liveness of the runtime."""

    is_alive: bool
    message: str = Field(default="", description="Reason why the runtime is not alive; empty if it is alive")


class SwerexCreateSessionRequest(BaseModel):
    """A session to open."""

    session: SessionName = "default"
    session_type: Literal["bash"] = "bash"
    startup_source: list[str] = Field(
        default=[], max_length=256, description="Files that the session reads with `source` at its start"
    )
    startup_timeout: Seconds = 1.0


class SwerexCreateSessionResponse(BaseModel):
    """The output of the session's start-up."""

    output: str = ""
    session_type: Literal["bash"] = "bash"


class SwerexBashAction(BaseModel):
    """A command for a session."""

    action_type: Literal["bash"] = "bash"
    command: str
    session: SessionName = "default"
    timeout: Seconds | None = Field(
        default=None, description="Maximum run time of the command in seconds, from its start. Absent: one day"
    )
    check: Literal["silent", "raise", "ignore"] = Field(
        default="raise",
        description="`raise`: an exit code other than 0 raises an exception. `silent`: the exit code is returned."
        " `ignore`: no exit code is returned",
    )
    error_msg: str = Field(default="", description="Text before the message of that exception")
    is_interactive_command: bool = Field(
        default=False, description="Interactive commands are not supported and are refused"
    )
    is_interactive_quit: bool = Field(
        default=False, description="Interactive commands are not supported and are refused"
    )
    expect: list[str] = Field(default=[], description="Must be empty: waiting for other prompts is not supported")


class SwerexBashInterruptAction(BaseModel):
    """An interrupt of the command that runs in a session."""

    action_type: Literal["bash_interrupt"]
    session: SessionName = "default"
    timeout: Seconds = 0.2
    n_retry: int = 3
    expect: list[str] = Field(default=[], description="Must be empty: waiting for other prompts is not supported")


class SwerexRunInSessionRequest(
    RootModel[Annotated[SwerexBashAction | SwerexBashInterruptAction, Field(discriminator="action_type")]]
):
    """A command for a session, or `bash_interrupt`."""


class SwerexBashObservation(BaseModel):
    """The output and the exit code of a command in a session."""

    output: str = ""
    exit_code: int | None = None
    failure_reason: str = ""
    expect_string: str = ""
    session_type: Literal["bash"] = "bash"


class SwerexCloseSessionRequest(BaseModel):
    """A session to close."""

    session: SessionName = "default"
    session_type: Literal["bash"] = "bash"


class SwerexCloseSessionResponse(BaseModel):
    """The confirmation that a session is closed."""

    session_type: Literal["bash"] = "bash"


class SwerexExecuteRequest(BaseModel):
    """A program to run outside of sessions."""

    command: str | list[str] = Field(description="Program and its arguments; with `shell`, a text for /bin/sh")
    timeout: Seconds | None = Field(
        default=None, description="Maximum run time of the program in seconds, from its start. Absent: one day"
    )
    shell: bool = False
    check: bool = Field(default=False, description="True to raise an exception for an exit code other than 0")
    error_msg: str = Field(default="", description="Text before the message of that exception")
    env: dict[str, str] | None = Field(
        default=None, description="All variables of the program. Absent: the variables of the environment"
    )
    cwd: str | None = None
    merge_output_streams: bool = False


class SwerexExecuteResponse(BaseModel):
    """The output and the exit code of a program."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = Field(
        default=None, description="Exit code of the program; the negative signal number if a signal ended it"
    )


class SwerexReadFileRequest(BaseModel):
    """A file to read as text."""

    path: str
    encoding: str | None = None
    errors: str | None = None


class SwerexReadFileResponse(BaseModel):
    """The text of a file."""

    content: str = ""


class SwerexWriteFileRequest(BaseModel):
    """A text file to write."""

    content: Annotated[str, AfterValidator(validate_unicode)]
    path: str


class SwerexWriteFileResponse(BaseModel):
    """The confirmation that a file is written."""


class SwerexUploadResponse(BaseModel):
    """The confirmation that an upload is complete."""


class SwerexCloseResponse(BaseModel):
    """The confirmation that all sessions are closed."""


class SwerexExceptionTransfer(BaseModel):
    """An exception that the client constructs and raises."""

    message: str = ""
    class_path: str = Field(default="", description="Path of the exception class that the client raises")
    traceback: str = ""
    extra_info: dict[str, Any] = {}


class SwerexErrorResponse(BaseModel):
    """The error that the client raises."""

    swerexception: SwerexExceptionTransfer
