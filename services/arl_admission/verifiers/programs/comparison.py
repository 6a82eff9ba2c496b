"""Comparison of two answers: is the second what a careful grader accepts for the first?"""

import re

import sympy
from sympy import Rational

from arl_admission.verifiers.programs.answer_kinds import Answer, as_set, normal_words
from arl_admission.verifiers.programs.values import proportional, same_value, stands_for

MOST_PARTS = 64
FUNCTION_NAMES = r"(?:[a-zA-Z]\([a-z](?:,[a-z])*\)|y)"


def same(wanted, said, in_list=False):
    """Return True if the answer `said` is equal to the answer `wanted`. In a list, labels must agree as well."""
    if wanted.kind == said.kind and wanted.kind in _SAME_KIND:
        return _SAME_KIND[wanted.kind](wanted, said, in_list)
    if said.kind == "choice" or wanted.kind == "choice":
        return _same_choice(wanted, said)
    for one, other, is_swapped in ((wanted, said, False), (said, wanted, True)):
        compare = _OTHER_KIND.get(one.kind)
        found = compare(one, other, is_swapped) if compare else None
        if found is not None:
            return found
    return False


def _same_number(wanted, said, in_list):
    if in_list and wanted.label and said.label and not _same_label(wanted.label, said.label):
        return False
    here, there = wanted.value, said.value
    if wanted.name is not None or said.name is not None:
        raw = [each.name if each.name is not None else each.value for each in (wanted, said)]
        both = wanted.name is not None and said.name is not None
        return _equal(here, there, wanted, said) or (not both and _equal(*raw, wanted, said))
    if wanted.unit and said.unit:
        (here_dimension, here_factor), (there_dimension, there_factor) = wanted.unit, said.unit
        if {here_dimension, there_dimension} == {("degree",), ("radian",)}:
            return _equal(
                *(each.value * (sympy.pi / 180 if each.unit[0] == ("degree",) else 1) for each in (wanted, said)),
                wanted,
                said,
            )
        if here_dimension != there_dimension:
            return False
        if here_factor != there_factor:
            here, there = (
                here * Rational(*here_factor.as_integer_ratio()),
                there * Rational(*there_factor.as_integer_ratio()),
            )
            return same_value(here, there)
    elif (wanted.unit or said.unit) and _is_compound(wanted if wanted.unit else said):
        return False
    elif "degree" in str((wanted.unit or said.unit or ((), 0))[0]) and here != there:
        degrees = here if wanted.unit else there
        other = there if wanted.unit else here
        return _equal(here, there, wanted, said) or (
            other.has(sympy.pi) and same_value(degrees * sympy.pi / 180, other)
        )
    return _equal(here, there, wanted, said)


def _is_compound(answer):
    return answer.label == answer.text and len(re.findall(r"\d+", answer.text)) > 1


def _equal(here, there, wanted, said):
    if same_value(here, there):
        return True
    decimals = [(_decimal(one.text), other) for one, other in ((wanted, there), (said, here))]
    first, second = (each[0] for each in decimals)
    if first and second:
        short, long = sorted((first, second), key=len)
        return stands_for(short, Rational(long)) and _places(short) < _places(long)
    return any(text and stands_for(text, value) for text, value in decimals)


def _decimal(text):
    text = text.replace(" ", "")
    return text if re.fullmatch(r"[+-]?(?:\d+\.\d*|\.\d+)", text) else None


def _places(text):
    return len(text.partition(".")[2])


def _same_label(wanted, said):
    def stem(text):
        return re.sub(r"(?:es|s)$", "", text)

    return stem(wanted) == stem(said)


def _same_words(wanted, said, in_list):
    return wanted.text == said.text or wanted.text.replace(" ", "") == said.text.replace(" ", "")


def _same_choice(wanted, said):
    """Compare options. If both have a letter, the letters count; otherwise the texts do."""
    if wanted.kind == said.kind:
        return wanted.name == said.name
    choice, other = (wanted, said) if wanted.kind == "choice" else (said, wanted)
    if not choice.parts:
        if other.kind == "assignment":
            return same(wanted, other.parts[0]) if choice is wanted else same(other.parts[0], said)
        if other.kind == "number" and other.value.is_Symbol:
            return str(other.value) == choice.text
        return False
    return same(choice.parts[0], other) if choice is wanted else same(other, choice.parts[0])


def _same_list(wanted, said, in_list):
    return _matched(_distinct(wanted.parts), _distinct(said.parts))


def _distinct(parts):
    """Return the parts without repetitions, which a list of solutions may have."""
    found = []
    for each in parts[:MOST_PARTS]:
        if not any(same(other, each, in_list=True) for other in found):
            found.append(each)
    return found


def _matched(wanted, said):
    if len(wanted) != len(said):
        return False
    names = [{each.name for each in side if each.kind == "assignment"} for side in (wanted, said)]
    if {len(names[0]), len(names[1])} & {0} and max(map(len, names)) > 1:
        return all(same(here, there, in_list=True) for here, there in zip(wanted, said, strict=False))
    left = list(said)
    for each in wanted:
        found = next((other for other in left if same(each, other, in_list=True)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_tuple(wanted, said, in_list):
    if len(wanted.parts) != len(said.parts):
        return False
    if wanted.name != said.name and len(wanted.parts) == 2 and not _is_vector(wanted, said):
        return False
    return _in_order(wanted.parts, said.parts)


def _is_vector(wanted, said):
    return False


def _in_order(wanted, said):
    return len(wanted) == len(said) and all(
        same(here, there, in_list=True) for here, there in zip(wanted, said, strict=False)
    )


def _same_matrix(wanted, said, in_list):
    is_vector = 1 in wanted.name and 1 in said.name and wanted.label == said.label
    return (wanted.name == said.name or is_vector) and _in_order(wanted.parts, said.parts)


def _same_assignment(wanted, said, in_list):
    bases = [each.name.partition("_")[0] for each in (wanted, said)]
    if bases[0] == bases[1] and ("_" in wanted.name) != ("_" in said.name):
        return same(wanted.parts[0], said.parts[0], in_list)
    if wanted.name != said.name and (
        in_list or not all(re.fullmatch(FUNCTION_NAMES, each.name) for each in (wanted, said))
    ):
        is_short = all(re.fullmatch(r"[a-zA-Z](?:_\w+)?|\(.*\)", each.name) for each in (wanted, said))
        if is_short or in_list:
            return False
    return same(wanted.parts[0], said.parts[0], in_list)


def _same_relation(wanted, said, in_list):
    if wanted.name != said.name:
        return False
    if wanted.name in ("=", "\\ne"):
        return proportional(wanted.value, said.value)
    return proportional(wanted.value, said.value) and _is_positive_ratio(wanted.value, said.value)


def _is_positive_ratio(wanted, said):
    return sympy.simplify(wanted / said).is_positive is True


def _same_set(wanted, said, in_list):
    if wanted.name and said.name and wanted.name != said.name:
        return False
    return _equal_sets(wanted.value, said.value)


def _equal_sets(wanted, said):
    if wanted == said:
        return True
    if isinstance(wanted, sympy.Interval) and isinstance(said, sympy.Interval):
        ends = ((wanted.start, said.start), (wanted.end, said.end))
        is_open = (wanted.left_open, wanted.right_open) == (said.left_open, said.right_open)
        return is_open and all(same_value(*each) for each in ends)
    if isinstance(wanted, sympy.Union) and isinstance(said, sympy.Union) and len(wanted.args) == len(said.args):
        left = list(said.args)
        for each in wanted.args:
            found = next((other for other in left if _equal_sets(each, other)), None)
            if found is None:
                return False
            left.remove(found)
        return True
    if isinstance(wanted, sympy.FiniteSet) and isinstance(said, sympy.FiniteSet):
        values = [[Answer("number", "", value=each) for each in one] for one in (wanted, said)]
        return _matched(*values)
    try:
        return sympy.SymmetricDifference(wanted, said).is_empty is True
    except Exception:
        return False


def _same_ratio(wanted, said, in_list):
    if len(wanted.parts) != len(said.parts) or any(each.kind != "number" for each in (*wanted.parts, *said.parts)):
        return False
    first, second = wanted.parts[0].value, said.parts[0].value
    return all(
        same_value(here.value * second, there.value * first)
        for here, there in zip(wanted.parts, said.parts, strict=False)
    )


def _same_clock(wanted, said, in_list):
    return wanted.name == said.name and (not wanted.label or not said.label or wanted.label == said.label)


def _same_residue(wanted, said, in_list):
    return wanted.name == said.name and (wanted.value - said.value) % wanted.name == 0


def _same_family(wanted, said, in_list):
    letter = said.parts[0]
    return same(wanted.parts[0], renamed(letter, said.name, wanted.name))


def renamed(answer, old, new):
    """Return an answer with another letter for its parameter."""
    if answer.kind == "number":
        answer.value = answer.value.subs(sympy.Symbol(old, real=True), sympy.Symbol(new, real=True))
    for each in answer.parts:
        renamed(each, old, new)
    return answer


def _assignment_or_other(one, other, is_swapped):
    """Compare `x=5` with `5`, and an equation solved for a letter with another equation."""
    inner = one.parts[0]
    if other.kind == "relation" and inner.kind == "number" and re.fullmatch(r"[a-zA-Z]\w*(?:\([a-z]\))?", one.name):
        name = "y" if "(" in one.name else one.name
        return other.name == "=" and proportional(sympy.Symbol(name, real=True) - inner.value, other.value)
    if other.kind == "list" and inner.kind not in ("list", "tuple"):
        return None if len(other.parts) != 1 else same(inner, other.parts[0])
    if one.name.startswith("(") and other.kind == "list":
        return _in_order([each.parts[0] for each in other.parts if each.kind == "assignment"], inner.parts)
    return same(other, inner) if is_swapped else same(inner, other)


def _list_or_other(one, other, is_swapped):
    """Compare a list with one answer, with coordinates, with a set and with ends of a range."""
    if other.kind == "tuple":
        names = [each.name for each in one.parts if each.kind == "assignment"]
        if len(set(names)) == len(one.parts) == len(other.parts) and names == sorted(names):
            return _in_order([each.parts[0] for each in one.parts], other.parts)
        return None
    if other.kind == "set" and isinstance(other.value, (sympy.FiniteSet, sympy.Union)):
        value = as_set(one)
        return value is not None and _equal_sets(value, other.value)
    if other.kind == "words" and other.text == "no solution":
        return not one.parts
    distinct = _distinct(one.parts)
    if len(distinct) == 1:
        return same(other, distinct[0]) if is_swapped else same(distinct[0], other)
    return None


def _range_or_other(one, other, is_swapped):
    if other.kind in ("tuple", "list", "ratio") and len(other.parts) == 2:
        return _in_order(one.parts, other.parts)
    if other.kind == "set" and isinstance(other.value, sympy.Interval):
        return _in_order(one.parts, [Answer("number", "", value=each) for each in (other.value.start, other.value.end)])
    return None


def _set_or_other(one, other, is_swapped):
    value = as_set(other)
    return None if value is None else _equal_sets(one.value, value)


def _ratio_or_other(one, other, is_swapped):
    if other.kind == "number" and len(one.parts) == 2 and all(each.kind == "number" for each in one.parts):
        return same_value(one.parts[0].value / one.parts[1].value, other.value)
    if other.kind == "clock":
        return [each.value for each in one.parts] == list(other.name[: len(one.parts)])
    return None


def _matrix_or_other(one, other, is_swapped):
    return _in_order(one.parts, other.parts) if other.kind == "tuple" and 1 in one.name else None


def _based_or_other(one, other, is_swapped):
    """A number without its base is compared by its digits: the question names the base."""
    return other.kind == "number" and (other.text.replace(" ", "") == one.text)


def _residue_or_other(one, other, is_swapped):
    return other.kind == "number" and same_value(one.value, other.value)


def _family_or_other(one, other, is_swapped):
    return same(other, one.parts[0]) if is_swapped else same(one.parts[0], other)


def _words_or_other(one, other, is_swapped):
    return normal_words(one.text) == normal_words(other.text) if other.kind == "number" else None


_SAME_KIND = {
    "number": _same_number,
    "words": _same_words,
    "list": _same_list,
    "tuple": _same_tuple,
    "matrix": _same_matrix,
    "assignment": _same_assignment,
    "relation": _same_relation,
    "set": _same_set,
    "ratio": _same_ratio,
    "clock": _same_clock,
    "residue": _same_residue,
    "family": _same_family,
    "range": lambda wanted, said, in_list: _in_order(wanted.parts, said.parts),
    "based": lambda wanted, said, in_list: bool(wanted.value == said.value),
}
_OTHER_KIND = {
    "assignment": _assignment_or_other,
    "family": _family_or_other,
    "list": _list_or_other,
    "range": _range_or_other,
    "set": _set_or_other,
    "ratio": _ratio_or_other,
    "matrix": _matrix_or_other,
    "based": _based_or_other,
    "residue": _residue_or_other,
    "words": _words_or_other,
}
