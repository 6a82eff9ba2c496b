"""Conversion of dataset values and conversation messages to texts that can be scored."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TextOrMessages", "as_text", "join_messages", "last_assistant_message", "message_text", "sanitize_text"]

TextOrMessages = str | Sequence[Mapping[str, Any]]
"""A text, or the messages of a conversation."""

_INVALID_CHARACTERS = re.compile("[\0\ud800-\udfff]")


def as_text(value: Any) -> str:
    """Return a text unchanged and any other value as JSON."""
    plain = _to_plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_to_plain)


def sanitize_text(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD. Otherwise a policy could avoid its score with such characters."""
    return _INVALID_CHARACTERS.sub("\ufffd", text)


def join_messages(conversation: TextOrMessages) -> str:
    if isinstance(conversation, str):
        return sanitize_text(conversation)
    return "\n".join(message_text(message.get("content")) for message in conversation)


def last_assistant_message(completion: TextOrMessages) -> str:
    """Return the last message of the assistant. A message without a role counts as one of the assistant."""
    if isinstance(completion, str):
        return sanitize_text(completion)
    own = [turn for turn in completion if turn.get("role", "assistant") == "assistant"]
    return message_text(own[-1].get("content")) if own else ""


def message_text(content: Any) -> str:
    """Return the text of a message, which may consist of several parts. An image part contributes no text."""
    if content is None or isinstance(content, str):
        return sanitize_text(content or "")
    return sanitize_text("".join(part if isinstance(part, str) else part.get("text") or "" for part in content))


def _to_plain(value: Any) -> Any:
    """Convert an array to a list of its numbers, and a value that JSON cannot represent to a string."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, dict | list | tuple | int | float) else str(value)
