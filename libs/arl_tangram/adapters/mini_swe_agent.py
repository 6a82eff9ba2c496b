"""mini-swe-agent: an environment class whose commands run in an environment of ARL-Tangram.

    environment:
      environment_class: arl_tangram.adapters.mini_swe_agent.TangramEnvironment
      template: py312
      cwd: /workspace

A command that fails or takes too long is an output for the model. An infrastructure error is raised: mini-swe-agent
then ends the run with the class of the error as its `exit_status`, so that the trajectory can be masked.
"""

import contextlib
from typing import Any

from minisweagent.exceptions import Submitted  # type: ignore[import-not-found]
from pydantic import BaseModel, ConfigDict

from arl_core.domain.states import ActionOutcome
from arl_tangram.adapters.environment_programs import CUT_NOTE, ProgramOutput, in_directory
from arl_tangram.client import Tangram
from arl_tangram.environment_handles import Environment

__all__ = ["TangramEnvironment", "TangramEnvironmentConfig"]

SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of the output with which a model submits."""
MERGED_STREAMS = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
UNAME = {"system": "-s", "node": "-n", "release": "-r", "version": "-v", "machine": "-m"}
"""Variables of prompt templates, and the options of `uname` that print them."""
NOT_FINISHED = -1
"""Exit code that mini-swe-agent's own environments return for a command that did not end by itself."""


class TangramEnvironmentConfig(BaseModel):
    """The fields of `environment` in a configuration of mini-swe-agent.

    `timeout`: seconds of a command. `interpreter`: the program that runs a command, with its options. The others are
    options of `Tangram.environment` and `Tangram.run`; None counts as not given.
    """

    model_config = ConfigDict(extra="forbid")

    cwd: str = ""
    env: dict[str, str] = {}
    timeout: float = 30
    interpreter: list[str] = ["bash", "-c"]
    task: str = "mini-swe-agent"
    trajectory: str | None = None
    template: str | None = None
    memory_mib: int = 2048
    disk_mib: int = 2048
    pids: int | None = None
    cpu: float = 1.0
    idle_ttl_s: int = 3600
    url: str | None = None


class TangramEnvironment:
    """An environment of mini-swe-agent. Between commands it has no cores.

    It exists when the object does, and ends with `cleanup` or with the object.
    """

    def __init__(self, *, config_class: type = TangramEnvironmentConfig, **kwargs: Any) -> None:
        """Create the environment. `kwargs`: the fields of `config_class`. The key is in TANGRAM_API_KEY."""
        self.config = config_class(**kwargs)
        self._client = Tangram(self.config.url)
        names = ("task", "trajectory", "template", "memory_mib", "disk_mib", "pids", "env", "idle_ttl_s")
        given: dict[str, Any] = {name: getattr(self.config, name) for name in names}
        try:
            self._environment: Environment | None = self._client.environment(**given)
        except BaseException:
            self._client.close()
            raise
        self.environment_id = self._environment.id
        self._uname = self._read_uname()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run the command of an action. Raises `Submitted`, and `ActionFailed` for an infrastructure error."""
        argv = [*MERGED_STREAMS, *self.config.interpreter, action.get("command", "")]
        run = self._open_environment().run(
            argv=in_directory(argv, cwd or self.config.cwd),
            timeout_s=timeout or self.config.timeout,
            cpu=self.config.cpu,
        )
        ended = ProgramOutput.of(run)
        output = _observation(ended)
        if not ended.truncated:
            _raise_if_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the variables of mini-swe-agent's prompt templates; `system` and `machine` are the environment's."""
        return {**self.config.model_dump(), **self._uname, **kwargs}

    def _read_uname(self) -> dict[str, str]:
        script = "; ".join(f"uname {option}" for option in UNAME.values())
        printed = ProgramOutput.of(
            self._open_environment().run(argv=["/bin/sh", "-c", script], cpu=self.config.cpu)
        ).stdout
        return dict(zip(UNAME, printed.decode(errors="replace").splitlines(), strict=False))

    def serialize(self) -> dict[str, Any]:
        """Return the part of a saved trajectory that describes the environment."""
        config = self.config.model_dump(mode="json")
        name = f"{type(self).__module__}.{type(self).__name__}"
        info = {"environment": config, "environment_type": name, "environment_id": str(self.environment_id)}
        return {"info": {"config": info}}

    def cleanup(self) -> None:
        """End the environment and close the connections. A second call has no effect."""
        environment, self._environment = getattr(self, "_environment", None), None
        if environment is not None:
            with self._client, environment:
                pass

    def _open_environment(self) -> Environment:
        if self._environment is None:
            raise RuntimeError("The environment has ended: `cleanup` was called")
        return self._environment

    def __del__(self) -> None:
        # The environment ends by itself after `idle_ttl_s`.
        with contextlib.suppress(Exception):
            self.cleanup()


def _observation(output: ProgramOutput) -> dict[str, Any]:
    action = output.action
    found: dict[str, Any] = {
        "output": (output.stdout + output.stderr).decode(errors="replace"),
        "returncode": output.exit_code,
        "exception_info": "",
    }
    if output.truncated:
        found["output"] += f"\n{CUT_NOTE}\n"
    if action.outcome in (ActionOutcome.USER_TIMEOUT, ActionOutcome.LIMIT_EXCEEDED):
        found["returncode"] = NOT_FINISHED
        reason = action.message or action.reason
        found["exception_info"] = f"An error occurred while executing the command: {action.outcome}: {reason}"
        found["extra"] = {"exception_type": str(action.outcome), "exception": reason}
    return found


def _raise_if_submitted(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == SUBMIT_LINE and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
