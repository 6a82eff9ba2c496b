"""Values of datasets and turns of conversations as texts that can be scored."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TextOrMessages", "as_text", "join_messages", "last_assistant_message", "message_text", "sanitize_text"]

TextOrMessages = str | Sequence[Mapping[str, Any]]
"""A text, or the turns of a conversation."""

_INVALID_CHARACTERS = re.compile("[\0\ud800-\udfff]")


def as_text(value: Any) -> str:
    """A text as it is, and JSON of what has a form there."""
    plain = _to_plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_to_plain)


def sanitize_text(text: str) -> str:
    """With U+FFFD for what no text can have, NUL and halves of surrogate pairs: a policy must not escape by them."""
    return _INVALID_CHARACTERS.sub("\ufffd", text)


def join_messages(conversation: TextOrMessages) -> str:
    if isinstance(conversation, str):
        return sanitize_text(conversation)
    return "\n".join(message_text(message.get("content")) for message in conversation)


def last_assistant_message(completion: TextOrMessages) -> str:
    """The last turn of the assistant, or what was said where nobody has a role."""
    if isinstance(completion, str):
        return sanitize_text(completion)
    own = [turn for turn in completion if turn.get("role", "assistant") == "assistant"]
    return message_text(own[-1].get("content")) if own else ""


def message_text(content: Any) -> str:
    """The text of a turn, which may be in parts; an image has none."""
    if content is None or isinstance(content, str):
        return sanitize_text(content or "")
    return sanitize_text("".join(part if isinstance(part, str) else part.get("text") or "" for part in content))


def _to_plain(value: Any) -> Any:
    """Of an array, its numbers; of what JSON has no form for, what it is as a text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, dict | list | tuple | int | float) else str(value)
