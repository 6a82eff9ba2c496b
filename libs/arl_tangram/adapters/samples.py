"""Values of datasets and turns of conversations as texts that can be scored."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Text", "all_turns", "as_text", "content_of", "last_answer", "readable"]

Text = str | Sequence[Mapping[str, Any]]
"""A text, or the turns of a conversation."""

_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")


def as_text(value: Any) -> str:
    """A text as it is, and JSON of what has a form there."""
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_plain)


def readable(text: str) -> str:
    """With U+FFFD for what no text can have, NUL and halves of surrogate pairs: a policy must not escape by them."""
    return _NO_CHARACTER.sub("\ufffd", text)


def all_turns(said: Text) -> str:
    if isinstance(said, str):
        return readable(said)
    return "\n".join(content_of(message.get("content")) for message in said)


def last_answer(completion: Text) -> str:
    """The last turn of the assistant, or what was said where nobody has a role."""
    if isinstance(completion, str):
        return readable(completion)
    own = [turn for turn in completion if turn.get("role", "assistant") == "assistant"]
    return content_of(own[-1].get("content")) if own else ""


def content_of(content: Any) -> str:
    """The text of a turn, which may be in parts; an image has none."""
    if content is None or isinstance(content, str):
        return readable(content or "")
    return readable("".join(part if isinstance(part, str) else part.get("text") or "" for part in content))


def _plain(value: Any) -> Any:
    """Of an array, its numbers; of what JSON has no form for, what it is as a text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, dict | list | tuple | int | float) else str(value)
