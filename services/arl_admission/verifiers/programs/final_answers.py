"""The last answer that a response gives: what it marks as its answer, or else the last statement that has one."""

import re

from arl_admission.verifiers.programs.notation import bracketed

LAST_CHARACTERS = 20_000
"""Characters at the end of a response in which its answer is searched. A longer answer is none."""
MOST_CHARACTERS = 2000
"""Maximum characters of an answer, and of the statement that has it."""
MOST_BOXES = 64
THOUGHT_ENDS = re.compile(
    r"</think(?:ing)?>|</reasoning>|</thought>|<\|end_of_thought\|>|◁/think▷|\[/THINK\]", re.IGNORECASE
)
THOUGHT_BEGINS = re.compile(
    r"<think(?:ing)?>|<reasoning>|<thought>|<\|begin_of_thought\|>|◁think▷|\[THINK\]", re.IGNORECASE
)
BOX = re.compile(r"\\f?boxed\s*(?=\{)|\\f?boxed\s*(\d|[A-Za-z](?![A-Za-z]))")
MARK = re.compile(
    r"\b(?:final\s+)?(?:answers?|result|solution|(?:correct|right|best)\s+(?:option|choice))"
    r"(?:\s*(?:\*\*|__))?\s*(?:is|are|=|:|was|would be|should be|must be)(?:\*\*)?"
    r"|答案(?:\*\*)?\s*(?:是|为|為|：|:)|答え\s*(?:は|：|:)|답\s*(?:은|:)|\bAntwort(?:\s+(?:ist|lautet)|\s*:)|\brespuesta(?:\s+(?:final\s+)?es|\s*:)"
    r"|\bréponse(?:\s+(?:finale\s+)?est|\s*:)|\brisposta(?:\s+è|\s*:)|\bответ(?:\s*[:—-])|\bresposta(?:\s+é|\s*:)",
    re.IGNORECASE,
)
HASHES = re.compile(r"^[ \t]*####[ \t]*(.+)$", re.MULTILINE)
TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
JOINER = (
    r"[\s$.,;、*\\()]*(?:(?:and|or|und|oder|y|o|et|ou|和|或|以及|及)\b|和|或|以及)?"
    r"[\s$\\(]*(?:(?:(?P<name>[a-zA-Z])(?:_\d)?\s*=))?[\s$]*"
)
REVISED = re.compile(
    r"\b(?:wait|actually|correction|sorry|oops|hold on|on second thought|"
    r"i made an? (?:mistake|error)|that(?:'s| is) (?:wrong|incorrect|not right))\b",
    re.IGNORECASE,
)
STATED = re.compile(
    r"(?:\b(?:is|are|be|equals|was|get|equal to|gives)\b|\b(?:so|thus|hence|therefore)\b,?|=|:(?=[\s$]))"
    r"\s*(?=[-+−$(\\√]*[\d(\\√π])",
    re.IGNORECASE,
)
RUN = re.compile(
    r"[-+−]?[(\[{$]*(?:\d|\.\d|[π√∞½¼¾]|\\(?:frac|sqrt|pi|infty)(?![a-z]))"
    r"(?:[\d.,/^*+\-−–×·√π∞()\[\]{}%°!:$\\⁰-⁹²³¹½¼¾]| (?=[\d/*+\-−×·√π(])|[eE](?=[-+−]?\d)"
    r"|(?<=\\)[a-z]+|[a-z](?=[{\s]))*"
)
LIST_GAP = re.compile(r"[\s,;]*(?:\b(?:and|or)\b)?\s*", re.IGNORECASE)
BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")
STOPS = re.compile(
    r"\s+(?:because|since|as|which|where|so|when|after|from|if|assuming|that is|i\.e\.|the)\b", re.IGNORECASE
)


class FinalAnswer:
    """The text of an answer, and shorter texts to read if it cannot be read."""

    def __init__(self, text, shorter=(), boxes=()):
        self.text = text
        self.shorter = shorter
        self.boxes = boxes


def final_answer(response):
    """Return the last answer of a response, or None."""
    text = _after_thought(response)
    marks = sorted(_marks(text), key=lambda each: each[0])
    if not marks:
        return _unmarked(text)
    _begin, end, kind, content = marks[-1]
    revised = _revised(text[end:])
    if revised is not None:
        return revised
    if kind == "box":
        return _boxes(text, [each for each in marks if each[2] == "box"])
    if kind == "tag" and content is not None:
        return (
            final_answer(content)
            if BOX.search(content) or MARK.search(content)
            else FinalAnswer(content.strip(), _runs(content))
        )
    if kind == "phrase":
        return _phrase(content)
    return FinalAnswer(content.strip(), _runs(content)) if content is not None else None


def _after_thought(text):
    ends = list(THOUGHT_ENDS.finditer(text))
    if ends:
        text = text[ends[-1].end() :]
    begin = THOUGHT_BEGINS.search(text)
    text = text[: begin.start()] if begin else text
    return re.sub(r"<\|[a-z_]+\|>|</s>", " ", text.strip()[-LAST_CHARACTERS:])


def _marks(text):
    """Yield begin, end, kind and content of everything that marks an answer."""
    at, spans = 0, []
    while (match := BOX.search(text, at)) is not None:
        if match.group(1):
            yield match.start(), match.end(), "box", match.group(1)
            at = match.end()
            continue
        content, at = bracketed(text, match.end())
        if content is None or content.strip():
            spans.append((match.start(), at))
            yield match.start(), at, "box", content
    for match in HASHES.finditer(text):
        yield match.start(), match.end(), "hashes", match.group(1)
    for match in TAG.finditer(text):
        yield match.end(), match.end(), "tag", match.group(1)
    for match in MARK.finditer(text):
        if any(begin < match.start() < end for begin, end in spans[-MOST_BOXES:]):
            continue
        rest = re.match(r"[\s*:]*(?:\\\[|\$\$)?\s*([^\n]*)", text[match.end() :])
        content = rest.group(1) if rest else ""
        if (
            content.strip(" *_")
            and not BOX.search(content)
            and (not spans or re.search(r"\d|\\[a-z]|\b[A-J]\b", content))
        ):
            yield match.start(), match.end() + rest.end(), "phrase", content


def _boxes(text, boxes):
    """Return the last box, together with the boxes before it if only `and`, `or` or a comma stand between them."""
    boxes = boxes[-MOST_BOXES:]
    group = [boxes[-1]]
    for before in reversed(boxes[:-1]):
        between = text[before[1] : group[0][0]]
        if not re.fullmatch(JOINER, between):
            break
        group.insert(0, before)
    if any(each[3] is None for each in group):
        return None
    contents = []
    for each in group:
        name = (
            re.search(r"(?<![a-zA-Z\\])([a-zA-Z](?:_\d)?)\s*=\s*\$*\s*$", text[max(0, each[0] - 20) : each[0]])
            if len(group) > 1
            else None
        )
        content = ("%s=%s" % (name.group(1), each[3]) if name else each[3]).strip()
        if content not in contents:
            contents.append(content)
    every = [each[3] for each in boxes if each[3] is not None]
    return FinalAnswer(", ".join(contents), boxes=every)


def _revised(tail):
    """Return the answer that replaces a marked one, such as after `Wait, it should be 43`."""
    cue = REVISED.search(tail)
    if cue is None:
        return None
    stated = list(STATED.finditer(tail, cue.end()))
    return _phrase(tail[stated[-1].end() :].split("\n")[0]) if stated else None


def _phrase(content):
    """Return the answer after the words that announce it."""
    content = content[:MOST_CHARACTERS]
    content = re.sub(r"^\s*(?:\*\*|__|:|\s)*|(?:\*\*|__)\s*", "", content)
    negated = re.match(r"not\s+.+?\bbut\s+(?:rather\s+)?(.+)", content)
    content = negated.group(1) if negated else content
    sentence = re.split(r"(?<=[^\s.])[.。!](?=\s|$)|(?<=\D)[.。](?=\s|$)", content)[0].strip()
    short = STOPS.split(sentence)[0]
    option = re.match(r"(?:option|choice)?\s*\(?([A-J])\)?(?=[\s.:,)]|$)(?!\s*(?:and|or|,)\s*\(?[A-J]\b)", sentence)
    math = re.match(r"\$([^$]+)\$\s*[.,]?\s*(?=[A-Za-z(]|$)", short)
    shorter = [
        sentence,
        *([math.group(1)] if math else ()),
        *([option.group(1)] if option else ()),
        *_runs(short, first=True),
    ]
    return FinalAnswer(short, shorter)


def _unmarked(text):
    """Return the last statement with an answer: bold text, a formula, a number or words."""
    text = re.sub(r"^#+\s.*$", "", text, flags=re.MULTILINE).strip()
    if not text:
        return None
    bold = [
        each
        for each in BOLD.findall(text)
        if not each.rstrip().endswith(":")
        and re.search(r"\d|\\", each)
        and not re.match(r"(?:step|case)\b", each, re.IGNORECASE)
    ]
    if bold:
        return FinalAnswer(bold[-1].split(":")[-1] if re.match(r"[A-Za-z ]+:", bold[-1]) else bold[-1], _runs(bold[-1]))
    if not re.search(r"[A-Za-z]{2}", re.sub(r"\\[a-zA-Z]+|\b(?:and|or|pi|sqrt)\b", "", text)) and "\n" not in text:
        return FinalAnswer(text, _runs(text))
    sentences = [each for each in re.split(r"(?<=[^\s.])[.。!?](?=\s|$)|\n+", text.replace("**", "")) if each.strip()]
    for sentence in reversed(sentences):
        if re.search(r"\d|\$|\\[\[(a-z]|[π√∞]", sentence):
            return _statement(sentence)
    last = sentences[-1:]
    return FinalAnswer(text, [*last, *(re.split(r"\b(?:is|are|be)\s+", each)[-1] for each in last)])


def _statement(sentence):
    sentence = sentence[-MOST_CHARACTERS:]
    segments = list(re.finditer(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", sentence))
    if segments and not re.search(r"\d", sentence[segments[-1].end() :]):
        parts = [next(group for group in segments[-1].groups() if group)]
        for before, after in zip(reversed(segments[:-1]), reversed(segments), strict=False):
            if not LIST_GAP.fullmatch(sentence[before.end() : after.start()]):
                break
            parts.insert(0, next(group for group in before.groups() if group))
        joined = ", ".join(parts)
        equals = re.split(r"(?<![<>!\\])=", joined)
        tail = sentence[segments[-1].end() :].strip(" .,")
        return FinalAnswer(
            joined + " " + tail if len(parts) == 1 and tail and len(tail.split()) < 3 else joined,
            [joined, *([equals[-1]] if len(equals) > 1 else ()), *_runs(joined)],
        )
    stated = list(STATED.finditer(sentence))
    tails = [sentence[stated[-1].end() :]] if stated else []
    return FinalAnswer((tails or [sentence])[0], [*[STOPS.split(each)[0] for each in tails], *_runs(sentence)])


def _runs(text, first=False):
    """Return the last (or first) number or formula of a text, together with the ones that are listed beside it."""
    text = text[:MOST_CHARACTERS] if first else text[-MOST_CHARACTERS:]
    runs = [each for each in RUN.finditer(text) if each.group().strip(" .,$")]
    if not runs:
        return []
    runs = runs if not first else list(reversed(runs))
    begin = end = runs[-1]
    for each in reversed(runs[:-1]):
        gap = text[end.end() : each.start()] if first else text[each.end() : begin.start()]
        if not LIST_GAP.fullmatch(gap):
            break
        begin, end = (begin, each) if first else (each, end)
    return [text[begin.start() : end.end()].strip(" ,:;").rstrip(".([{ ")]
