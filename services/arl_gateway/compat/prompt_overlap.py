"""Split of a query into its prompt and its response, for trainers that send both in one text.

OpenRLHF decodes the query from tokens and sends the prompt as text. The two differ: the tokenizer adds tokens at the
start, pads on the left, normalizes characters and spaces, and prompts above a limit lose their beginning.
"""

import re
import unicodedata

__all__ = ["response_of"]

MIN_OVERLAP = 24
"""Minimum characters of a shortened prompt in the query. Fewer could be the same by chance."""
ANCHOR = 48
"""Characters at the end of a prompt that are searched in the query if other parts of the prompt differ."""
ANCHOR_SLACK = 16
"""Characters by which a prompt may be longer in the query, where decoding replaces a character by several."""
_SPECIAL_TOKEN = re.compile(
    r"<[|｜][^<>|｜\s]{1,64}[|｜]>|</?s>|<(?:pad|bos|eos|unk|mask|start_of_turn|end_of_turn)>"
    r"|\[(?:PAD|CLS|SEP|UNK|MASK|BOS|EOS|gMASK)\]"
)
_IGNORED = re.compile(_SPECIAL_TOKEN.pattern + r"|[\s\ufffd\u2581\u0120]+")
"""Text that decoding may add or remove: special tokens, spaces and replacement characters."""
_LEADING = re.compile(rf"(?:{_SPECIAL_TOKEN.pattern}|\s)+")


def response_of(query: str, prompt: str) -> str | None:
    """Return the part of `query` after `prompt`, or None if the query does not contain the end of the prompt.

    The prompt may be shortened on the left, and may differ in special tokens, spaces and Unicode normalization.
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    said, asked = _canonical(query), _canonical(prompt)
    length = _prompt_length(said, asked)
    if length is None:
        return None
    rest = query[_position(query, length) :]
    tail = _LEADING.match(rest)
    return rest[tail.end() :] if tail is not None else rest


def _prompt_length(said: str, asked: str) -> int | None:
    """Return how many characters at the start of the canonical query belong to the canonical prompt."""
    if said.startswith(asked):
        return len(asked)
    if len(asked) < MIN_OVERLAP:
        return None
    common = next((at for at, (one, other) in enumerate(zip(said, asked, strict=False)) if one != other), len(asked))
    overlap = _overlap(said, asked)
    if overlap >= MIN_OVERLAP and overlap >= common:
        return overlap
    # The query begins like the prompt, which is not shortened, but differs inside: its end is near its length.
    anchor = asked[-ANCHOR:]
    found = said.rfind(anchor, 0, len(asked) + ANCHOR_SLACK)
    return found + len(anchor) if found >= 0 else None


def _overlap(said: str, asked: str) -> int:
    """Return the length of the longest start of `said` that is an end of `asked` (Knuth, Morris and Pratt)."""
    said, asked = said[: len(asked)], asked[-len(said) :]
    borders = [0] * len(said)
    matched = 0
    for at in range(1, len(said)):
        while matched and said[at] != said[matched]:
            matched = borders[matched - 1]
        matched += said[at] == said[matched]
        borders[at] = matched
    matched = 0
    for character in asked:
        while matched and (matched == len(said) or character != said[matched]):
            matched = borders[matched - 1]
        matched += matched < len(said) and character == said[matched]
    return matched


def _canonical(text: str) -> str:
    return unicodedata.normalize("NFKD", _IGNORED.sub("", text))


def _position(text: str, length: int) -> int:
    """Return the position in `text` after the first `length` canonical characters."""
    at = seen = 0
    while seen < length:
        ignored = _IGNORED.match(text, at)
        if ignored is not None:
            at = ignored.end()
            continue
        seen += len(unicodedata.normalize("NFKD", text[at]))
        at += 1
    return at
