"""verl: a tool whose calls run in the rollout's environment.

    actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml

    tools:
      - class_name: arl_tangram.adapters.verl_tool.TangramTool
        config: {type: native, task: swe, template: repo, cpu: 1, memory_mib: 2048, timeout_s: 120}

verl creates and releases a tool for every single call (`verl/experimental/agent_loop/tool_agent_loop.py`), so the tool
itself owns nothing. The environment belongs to the rollout (`agent_data.request_id`). The first call creates it; it
ends after `idle_ttl_s` without use.
"""

from collections.abc import Mapping
from typing import Any

from verl.tools.base_tool import BaseTool  # type: ignore[import-not-found]
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse  # type: ignore[import-not-found]

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome
from arl_tangram.adapters.sample_text import sanitize_text
from arl_tangram.async_client import AsyncTangram
from arl_wire.actions.action import Action
from arl_wire.errors import ValidationFailed

__all__ = ["TangramTool"]

SHELL_TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command in a bash that stays open: its directory, variables and files are kept.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "What to run"}},
            "required": ["command"],
        },
    },
}
"""The default tool schema that the model sees if the configuration has none."""
CLIENT_OPTIONS = ("url", "api_key")


class TangramTool(BaseTool):  # type: ignore[misc]
    """A verl tool that runs `command` in an open shell, or `code` as a separate Python program.

    `config`: options of `Tangram.run` (`task`, `template`, `cpu`, `memory_mib`, `timeout_s`, `idle_ttl_s`), `url` and
    `api_key`. The response is the output, and the reason if the call did not succeed. The metrics contain the
    `outcome`, the queueing delay and the run time in seconds. Use `outcome` to exclude rollouts that met an
    infrastructure error.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        given = {name: value for name, value in config.items() if name != "type"}
        self._client = AsyncTangram(*(given.pop(name, None) for name in CLIENT_OPTIONS))
        self._options: dict[str, Any] = {"task": "verl", "idle_ttl_s": 900, **given}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return OpenAIFunctionToolSchema.model_validate(SHELL_TOOL_SCHEMA)

    async def execute(
        self, instance_id: str, parameters: Mapping[str, Any], agent_data: Any = None, **_more: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Return the output as text, a reward of 0, and metrics.

        An infrastructure error is also returned as text, which verl shows to the model.
        """
        rollout = str(getattr(agent_data, "request_id", None) or instance_id)
        try:
            action = await self._client.run(trajectory=rollout, **_exec_options(parameters), **self._options)
        except ValidationFailed as error:
            return (
                ToolResponse(text=f"This can't be run: {error.detail}"),
                0.0,
                {"outcome": ActionOutcome.USER_ERROR.value},
            )
        metrics = {"outcome": str(action.outcome), "queue_s": action.times.queue_s, "run_s": action.times.run_s}
        return ToolResponse(text=_response_text(action)), 0.0, metrics


def _exec_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if (code := parameters.get("code")) is not None:
        return {"source": sanitize_text(str(code))}
    return {"session": "main", "command": sanitize_text(str(parameters.get("command", "")))}


def _response_text(action: Action) -> str:
    result = action.result
    written = result.stdout.text + result.stderr.text if result is not None else ""
    if action.outcome is ActionOutcome.OK:
        return written
    if action.outcome in MASKED_OUTCOMES:
        return f"{written}\n[the tool failed, and not the command: {action.message or action.reason or action.outcome}]"
    ends = {
        ActionOutcome.USER_TIMEOUT: "[it took too long and was ended]",
        ActionOutcome.LIMIT_EXCEEDED: f"[it was ended: more than its limit of {action.reason}]",
    }
    code = result.exit_code if result is not None else None
    return f"{written}\n{ends.get(ActionOutcome(str(action.outcome)), f'[exit code {code}]')}"
