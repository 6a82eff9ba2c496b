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
SessionName = Annotated[str, Field(description="Any; it is opened by `create_session`")]


class SwerexIsAliveResponse(BaseModel):
    is_alive: bool
    message: str = Field(default="", description="Why not")


class SwerexCreateSessionRequest(BaseModel):
    session: SessionName = "default"
    session_type: Literal["bash"] = "bash"
    startup_source: list[str] = Field(default=[], max_length=256, description="Read by `source`, as it stands here")
    startup_timeout: Seconds = 1.0


class SwerexCreateSessionResponse(BaseModel):
    output: str = ""
    session_type: Literal["bash"] = "bash"


class SwerexBashAction(BaseModel):
    action_type: Literal["bash"] = "bash"
    command: str
    session: SessionName = "default"
    timeout: Seconds | None = Field(default=None, description="Of the command, once it runs; left out: a day")
    check: Literal["silent", "raise", "ignore"] = Field(
        default="raise", description="`raise`: an exit code other than 0 is an exception; `ignore`: none is answered"
    )
    error_msg: str = Field(default="", description="Begins the message of that exception")
    is_interactive_command: bool = Field(default=False, description="Not done here, and refused")
    is_interactive_quit: bool = Field(default=False, description="Not done here, and refused")
    expect: list[str] = Field(default=[], description="Not done here, and refused unless it is empty")


class SwerexBashInterruptAction(BaseModel):
    action_type: Literal["bash_interrupt"]
    session: SessionName = "default"
    timeout: Seconds = 0.2
    n_retry: int = 3
    expect: list[str] = Field(default=[], description="Not done here, and refused unless it is empty")


class SwerexRunInSessionRequest(
    RootModel[Annotated[SwerexBashAction | SwerexBashInterruptAction, Field(discriminator="action_type")]]
):
    """A command for a session, or `bash_interrupt`."""


class SwerexBashObservation(BaseModel):
    output: str = ""
    exit_code: int | None = None
    failure_reason: str = ""
    expect_string: str = ""
    session_type: Literal["bash"] = "bash"


class SwerexCloseSessionRequest(BaseModel):
    session: SessionName = "default"
    session_type: Literal["bash"] = "bash"


class SwerexCloseSessionResponse(BaseModel):
    session_type: Literal["bash"] = "bash"


class SwerexExecuteRequest(BaseModel):
    command: str | list[str] = Field(description="A program and its arguments; with `shell`, text for /bin/sh")
    timeout: Seconds | None = Field(default=None, description="Of the program, once it runs; left out: a day")
    shell: bool = False
    check: bool = Field(default=False, description="An exit code other than 0 is an exception")
    error_msg: str = Field(default="", description="Begins the message of that exception")
    env: dict[str, str] | None = Field(default=None, description="All of its variables; left out: the environment's")
    cwd: str | None = None
    merge_output_streams: bool = False


class SwerexExecuteResponse(BaseModel):
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = Field(default=None, description="Of one that a signal ended, that number below 0")


class SwerexReadFileRequest(BaseModel):
    path: str
    encoding: str | None = None
    errors: str | None = None


class SwerexReadFileResponse(BaseModel):
    content: str = ""


class SwerexWriteFileRequest(BaseModel):
    content: Annotated[str, AfterValidator(validate_unicode)]
    path: str


class SwerexWriteFileResponse(BaseModel):
    pass


class SwerexUploadResponse(BaseModel):
    pass


class SwerexCloseResponse(BaseModel):
    pass


class SwerexExceptionTransfer(BaseModel):
    message: str = ""
    class_path: str = Field(default="", description="Of the class that the client raises")
    traceback: str = ""
    extra_info: dict[str, Any] = {}


class SwerexErrorResponse(BaseModel):
    """The error that the client raises."""

    swerexception: SwerexExceptionTransfer
