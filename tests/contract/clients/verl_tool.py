"""Call our verl tool as verl's agent loop does, with verl's base class, on a running system.

`python verl_tool.py DIRECTORY URL KEY`: packages installed to the directory without what they depend on. Prints JSON.
"""

import asyncio
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any


def put(name: str, **members: Any) -> None:
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    for member, value in members.items():
        setattr(module, member, value)


def real(directory: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, directory / f"{name.replace('.', '/')}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


async def called(tool: Any, rollout: str, **arguments: Any) -> list[Any]:
    """Call the tool as `ToolAgentLoop._call_tool` does."""
    agent = types.SimpleNamespace(request_id=rollout)
    instance, _ = await tool.create(create_kwargs={})
    response, reward, metrics = await tool.execute(instance, arguments, agent_data=agent)
    await tool.release(instance)
    return [response.text, reward, metrics["outcome"]]


async def asked(directory: Path, url: str, key: str) -> dict[str, Any]:
    for package in ("verl", "verl.tools", "verl.utils"):
        put(package)
    put("verl.utils.rollout_trace", rollout_trace_op=lambda function: function)
    for name in ("verl.tools.schemas", "verl.tools.base_tool"):
        real(directory, name)
    from arl_tangram.adapters.verl_tool import TangramTool

    config = {"type": "native", "url": url, "api_key": key, "task": "tools", "timeout_s": 20, "memory_mib": 128}
    tool = TangramTool(config, None)
    found = {
        "made": await called(tool, "r1", command="mkdir a; cd a; x=7; echo made > b"),
        "kept": await called(tool, "r1", command="pwd | tail -c 3; cat b; echo $x"),
        "apart": await called(tool, "r2", command="ls"),
        "code": await called(tool, "r1", code="print(open('a/b').read())"),
        "failed": await called(tool, "r1", command="(exit 3)"),
        "odd": await called(tool, "r2", code="print(1)\0"),
        "together": await asyncio.gather(*(called(tool, f"p{at}", command=f"echo {at}") for at in range(8))),
        "named": tool.name,
    }
    await tool._client.close()
    return found


if __name__ == "__main__":
    said = sys.stdout
    sys.stdout = sys.stderr  # verl prints the schema
    print(json.dumps(asyncio.run(asked(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))), file=said)
