"""Reward functions that a node's settings can name."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["length", "length_later"]


def length(item: Mapping[str, Any]) -> Any:
    """Return the length of the text; some texts cause faults instead."""
    match item["text"]:
        case "raise":
            raise LookupError("as it was asked")
        case "nothing":
            return None
        case "nan":
            return float("nan")
        case "huge":
            return 10**400
        case "details":
            return {"score": 7, "details": {"why": "asked"}}
        case "large":
            return {"score": 7, "details": {"why": "x" * (1 << 20)}}
        case "deep":
            return {"score": 7, "details": json.loads('{"why": ' * 300 + "0" + "}" * 300)}
        case "exit":
            raise SystemExit(3)
        case text:
            return len(text)


async def length_later(item: Mapping[str, Any]) -> Any:
    await asyncio.sleep(3600 if item["text"] == "never" else 0)
    return length(item)
