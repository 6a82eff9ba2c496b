"""Judges: the request that an engine gets for an item, and the score that is parsed from its completions."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from arl_gpu.models.interface import Entry, Item, error_entry
from arl_wire.reward_services.judges import TEMPLATE_FIELDS, JudgeOptions, parse_template

__all__ = ["EngineJudge", "JudgeInputError", "is_chat"]

MAX_PATTERN_CHARACTERS = 8192
"""Characters at the end of a completion that a pattern searches for its verdict."""
PATTERN_TIMEOUT_S = 0.5
"""Timeout in seconds of a pattern on one completion."""
ITEM_PATTERN_TIMEOUT_S = 2.0
"""Timeout in seconds of a pattern on all completions of an item."""
MIN_PATTERN_TIMEOUT_S = 0.01
"""Minimum timeout in seconds of a pattern on each completion of an item."""
MAX_SEARCHED_CHARACTERS = 256 << 10
"""Maximum characters of a completion that is searched for JSON objects. A part would hide which are nested."""
MAX_SCANNED_CHARACTERS = 64 << 20
"""Maximum characters that are scanned for unreadable objects: the JSON error counts the lines before its position."""
BRACE = re.compile(r"[{}]")
OBJECT_START = re.compile(r"\s*[\"'}]")
"""Text that follows an object's opening brace; other braces belong to formulas and templates."""
MAX_DETAIL_CHARACTERS = 8192
"""Maximum characters of completions in an entry's details, for all completions of the item."""
TRUNCATED_FINISH_REASONS = frozenset({"length", "content_filter"})
"""Finish reasons of incomplete completions. A verdict in one may only quote the instruction during reasoning."""

Aggregate = Callable[[Sequence[float]], float]


class JudgeInputError(Exception):
    """An item from which the judge's prompt cannot be built. `code`: the error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def is_chat(item: Item) -> bool:
    """Return True if the item is a chat, which gets a completion and no score."""
    return "chat" in item


class EngineJudge:
    """A judge: it builds requests to its engine and parses the verdicts."""

    def __init__(self, options: JudgeOptions | None) -> None:
        """Initialise the judge. If `options` is None, it only completes chats."""
        self._options = options

    def build_request(self, item: Item) -> Mapping[str, Any]:
        """Return the body of a chat completion without its model. Raises `JudgeInputError`."""
        if is_chat(item):
            return {**item["chat"], "messages": list(item["messages"])}
        options = self._options
        if options is None:
            raise JudgeInputError(
                "no_template", "this judge was registered without options.judge and only answers chats"
            )
        named = [name for _, name in parse_template(options.prompt) if name is not None]
        if missing := [TEMPLATE_FIELDS[name] for name in named if TEMPLATE_FIELDS[name] not in item]:
            raise JudgeInputError(f"no_{missing[0]}", f"the judge's prompt needs {missing[0]}, but the item has none")
        asked = "".join(
            text + (item[TEMPLATE_FIELDS[name]] if name is not None else "")
            for text, name in parse_template(options.prompt)
        )
        system = [{"role": "system", "content": options.system}] if options.system is not None else []
        sampling = options.model_dump(include={"temperature", "top_p", "max_tokens"}, exclude_none=True)
        messages = [*system, {"role": "user", "content": asked}]
        return {**options.extra, **sampling, "n": options.samples, "messages": messages}

    def parse_entry(self, choices: Sequence[Mapping[str, Any]]) -> Entry:
        """Return the entry from the samples' completions.

        A completion without a readable verdict is ignored; it never counts as 0.
        """
        options = self._options
        if options is None:
            raise ValueError("a judge without options cannot parse verdicts")
        texts = [choice["message"].get("content") or "" for choice in choices]
        are_cut = [choice.get("finish_reason") in TRUNCATED_FINISH_REASONS for choice in choices]
        try:
            reader = _VerdictReader(options)
        except regex.error as error:
            return error_entry("bad_pattern", f"the judge's pattern is invalid: {error}")
        verdicts = [None if is_cut else reader.verdict(text) for text, is_cut in zip(texts, are_cut, strict=True)]
        found = [verdict for verdict in verdicts if verdict is not None]
        if len(found) < options.min_verdicts:
            shown = texts[0][-200:] if texts else ""
            what = (
                f"{len(found)} of {len(texts)} answers have a readable verdict, but at least {options.min_verdicts}"
                " must have one"
            )
            cut = f"; {sum(are_cut)} were truncated" if any(are_cut) else ""
            if reader.has_timed_out:
                return error_entry("pattern_timeout", f"{what}{cut}; the search for the pattern took too long")
            return error_entry("verdict_unparsed", f"{what}{cut}; the first answer ends with {shown!r}")
        most = MAX_DETAIL_CHARACTERS // max(1, len(texts)) // 4  # a character can have four bytes
        details = {"verdicts": verdicts, "answers": [text[-most:] for text in texts]}
        return {"score": AGGREGATES[options.aggregate](found), "details": details}


class _VerdictReader:
    """A parser of the verdicts in an item's completions. Raises `regex.error` if the pattern is invalid."""

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options
        self._pattern = regex.compile(options.pattern) if options.pattern is not None else None
        self._ends_at = time.monotonic() + ITEM_PATTERN_TIMEOUT_S
        self.has_timed_out = False
        """True if the pattern timed out on a completion."""

    def verdict(self, text: str) -> float | None:
        """Return the score of the verdict in a completion; None if it has no readable verdict."""
        options, said = self._options, self._extract(text)
        if said is None or (options.words is None and "_" in said):  # Python would read 1_0 as 10
            return None
        if options.words is not None:
            return options.words.get(said.strip().lower())
        try:
            number = float(said)
        except ValueError:
            return None
        is_within = options.minimum is not None and options.maximum is not None
        return number if is_within and options.minimum <= number <= options.maximum else None  # type: ignore[operator]

    def _extract(self, text: str) -> str | None:
        if self._pattern is None:
            return _last_value(self._options.json_field, text)
        left = self._ends_at - time.monotonic()
        try:
            return _last_group(
                self._pattern, text[-MAX_PATTERN_CHARACTERS:], min(PATTERN_TIMEOUT_S, max(left, MIN_PATTERN_TIMEOUT_S))
            )
        except TimeoutError:
            self.has_timed_out = True
            return None


def _last_group(pattern: Any, text: str, within_s: float) -> str | None:
    """Return the group of the last match. A group that did not participate in its match is no verdict."""
    found: str | None = None
    for match in pattern.finditer(text, timeout=within_s, concurrent=True):
        found = match.group(1)
    return found


def _last_value(name: str | None, text: str) -> str | None:
    """Return the field of the last top-level object that has it, readable or not."""
    found: str | None = None
    at = inside = 0
    left = MAX_SCANNED_CHARACTERS
    if len(text) > MAX_SEARCHED_CHARACTERS:
        return None
    while brace := BRACE.search(text, at):
        at = brace.end()
        if inside:
            inside += 1 if brace[0] == "{" else -1
        elif brace[0] == "{" and OBJECT_START.match(text, at):
            try:
                said, at = json.JSONDecoder().raw_decode(text, brace.start())
            except (ValueError, RecursionError) as error:
                inside = 1
                left -= error.pos if isinstance(error, json.JSONDecodeError) else len(text)
                if left < 0:
                    return None
                continue
            if name in said:
                found = _to_text(said[name])
    return found


def _to_text(value: Any) -> str | None:
    """Convert a JSON value to text. Arrays and objects are no verdicts."""
    if isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _mean(verdicts: Sequence[float]) -> float:
    return math.fsum(verdicts) / len(verdicts)


def _majority(verdicts: Sequence[float]) -> float:
    counts = Counter(verdicts)
    most = max(counts.values())
    return _mean([verdict for verdict, count in counts.items() if count == most])


AGGREGATES: Mapping[str, Aggregate] = {"mean": _mean, "majority": _majority, "min": min, "max": max}
