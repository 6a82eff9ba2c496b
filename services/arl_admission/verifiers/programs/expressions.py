"""A reader of mathematical expressions in LaTeX or plain text, which refuses what it would have to guess."""

import re

import sympy
from sympy import Integer, Rational

from arl_admission.verifiers.programs.symbol_names import CONSTANTS, DECORATIONS, FUNCTIONS, GREEK, WORDS

MOST_CHARACTERS = 2000
LARGEST_POWER_BITS = 1 << 16
"""A power of integers with more bits stays a power, since its digits would take seconds."""
MOST_POWER_BITS = 1 << 26
"""A power with more bits is not read, since its logarithm would take seconds."""
LARGEST_POWER = 5000
"""Largest exponent of an expression with symbols."""
LARGEST_FACTORIAL = 3000
MOST_LETTERS = 3
"""Maximum different letters side by side that are a product. More of them are a word."""
TIMES, OVER = {"*", "\\cdot", "\\times"}, {"/", "\\div"}
CLOSINGS = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|\\.|[A-Za-z]+|\*\*|\S)", re.DOTALL)
WORD_SPLIT = re.compile("|".join(sorted([*FUNCTIONS, "sqrt", "pi", "infinity", "inf"], key=len, reverse=True)) + "|.")


class Unreadable(Exception):
    """The text is no expression that this module reads."""


def read_expression(text):
    """Return the value of a text as a SymPy expression. Raises Unreadable."""
    if len(text) > MOST_CHARACTERS:
        raise Unreadable("the expression is too long")
    reader = ExpressionReader(text)
    try:
        value = reader.sum()
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    if reader.next is not None:
        raise Unreadable("unexpected %r" % reader.next)
    if value.has(sympy.nan, sympy.zoo):
        raise Unreadable("the value is undefined")
    return value


class ExpressionReader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text):
        self.tokens = list(_tokens(text))
        self.at = 0
        self.bars = 0

    @property
    def next(self):
        """The next token, or None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, wanted=None):
        """Return the next token and pass it. Raises Unreadable if it is another than the one wanted."""
        token = self.next
        if token is None or (wanted is not None and token != wanted):
            raise Unreadable("expected %r, found %r" % (wanted, token))
        self.at += 1
        return token

    def sum(self):
        """Read terms with signs between them."""
        value = self.product()
        while self.next in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self):
        """Read factors with or without signs of multiplication between them."""
        sign = self.signs()
        value = self.power()
        while True:
            if self.next in TIMES:
                self.take()
                value = value * self.signs() * self.power()
            elif self.next in OVER:
                self.take()
                value = value / (self.signs() * self.power())
            elif self.starts_operand():
                if self.tokens[self.at - 1][-1].isdigit() and self.next[0].isdigit():
                    raise Unreadable("two numbers side by side")
                value = value * self.power()
            else:
                return sign * value

    def signs(self):
        """Return 1 or -1 for any number of signs."""
        sign = 1
        while self.next in ("+", "-"):
            sign = -sign if self.take() == "-" else sign
        return sign

    def starts_operand(self):
        """Return True if a factor can begin here."""
        token = self.next
        if token is None or token in ("+", "-", ")", "]", "}", ",", "^", "**", "!", "_", "=", "<", ">", ":", ";", "&"):
            return False
        if token == "|":
            return self.bars == 0
        return token[0].isalnum() or token in CLOSINGS or (token[0] == "\\" and token[1:].isalpha() and self.is_known())

    def is_known(self):
        """Return True if the command at this place begins an operand."""
        name = self.next[1:]
        known = {"frac", "sqrt", "binom", "operatorname", "lfloor", "lceil"}
        return name in known or any(name in each for each in (FUNCTIONS, CONSTANTS, GREEK, DECORATIONS))

    def power(self):
        """Read an operand with its factorials, degrees, percent and exponent."""
        value = self.postfix(self.operand())
        if self.next in ("^", "**"):
            self.take()
            if self.next in ("\\circ", "{") and self.is_degree():
                value = value * sympy.pi / 180
            else:
                value = _power(value, self.exponent())
            value = self.postfix(value)
        return value

    def is_degree(self):
        """Pass a sign of degrees and return True, or return False."""
        for sign in (["\\circ"], ["{", "\\circ", "}"]):
            if self.tokens[self.at : self.at + len(sign)] == sign:
                self.at += len(sign)
                return True
        return False

    def exponent(self):
        """Read what stands after a sign of a power."""
        if self.next == "{":
            return self.group()
        if self.next in ("+", "-"):
            return self.signs() * self.power()
        return self.power() if self.next == "(" else self.postfix(self.operand())

    def postfix(self, value):
        """Apply factorials and percent."""
        while self.next in ("!", "\\%", "%"):
            value = _factorial(value) if self.take() == "!" else value / 100
        return value

    def group(self):
        """Read a value in brackets."""
        opening = self.take()
        bars, self.bars = self.bars, 0
        value = self.sum()
        self.take(CLOSINGS[opening])
        self.bars = bars
        return value

    def argument(self):
        """Read an argument of a command: a group, or one digit or letter."""
        return self.group() if self.next == "{" else self.operand(short=True)

    def operand(self, short=False):
        """Read a number, a symbol, a function or a value in brackets."""
        token = self.next
        if token is None:
            raise Unreadable("the expression ends early")
        if token[0].isdigit() or token[0] == ".":
            return self.number(short)
        if token in ("\\lfloor", "\\lceil"):
            return (sympy.floor if token == "\\lfloor" else sympy.ceiling)(self.group())
        if token in ("(", "[", "{"):
            return self.group()
        if token == "|":
            return self.absolute()
        self.take()
        return self.named(token.lstrip("\\"))

    def number(self, short):
        """Read a number. Without braces a command takes one digit of it."""
        token = self.take()
        if short and len(token) > 1 and token.isdigit():
            self.tokens.insert(self.at, token[1:])
            token = token[0]
        if self.next == "_":
            return Integer(int(token, int(self.subscript())))
        return Rational(token)

    def absolute(self):
        """Read an absolute value."""
        self.take("|")
        self.bars += 1
        value = self.sum()
        self.take("|")
        self.bars -= 1
        return sympy.Abs(value)

    def named(self, name):
        """Read what belongs to a name: the arguments of a function, the subscript of a symbol."""
        if name in ("frac", "binom"):
            return _of_two(name, self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name == "operatorname":
            return self.named(self.raw())
        if name in FUNCTIONS and name != "det":
            return self.function(name)
        if name in CONSTANTS and self.next != "_":
            return CONSTANTS[name]
        if name in DECORATIONS:
            return sympy.Symbol(name + " " + self.raw(), real=True)
        if not name.isalpha() or not name.isascii() or (len(name) > 1 and name not in GREEK):
            raise Unreadable("unknown name %r" % name)
        if self.next == "_":
            name += "_" + self.subscript()
        while self.next == "'":
            name += self.take()
        return sympy.Symbol(name, real=True)

    def subscript(self):
        """Return a subscript as text."""
        self.take("_")
        return self.raw()

    def raw(self):
        """Return the text of a group, or one token."""
        if self.next != "{":
            token = self.take()
            if len(token) > 1 and token.isdigit():
                self.tokens.insert(self.at, token[1:])
                return token[0]
            return token
        self.take()
        depth, parts = 1, []
        while True:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            if depth == 0:
                return "".join(parts)
            parts.append(token)

    def root(self):
        """Read a root with its index."""
        index = self.group() if self.next == "[" else Integer(2)
        value = self.argument()
        if index.is_Integer and index.is_odd and value.is_number and value.is_negative:
            return -sympy.root(-value, index)
        return sympy.root(value, index)

    def function(self, name):
        """Read base, exponent and argument of a function. Without brackets the argument ends at a sign."""
        base = exponent = None
        while self.next in ("_", "^"):
            if self.take() == "_":
                base = self.argument()
            else:
                exponent = self.exponent()
        arguments = self.arguments()
        value = _apply(name, base, arguments)
        if exponent is None:
            return value
        if exponent == -1 and "a" + name in ("asin", "acos", "atan", "acot", "asec", "acsc"):
            return getattr(sympy, "a" + name)(*arguments)
        return value**exponent

    def arguments(self):
        """Read the arguments of a function."""
        if self.next in ("(", "["):
            closing = CLOSINGS[self.take()]
            values = [self.sum()]
            while self.next == ",":
                self.take()
                values.append(self.sum())
            self.take(closing)
            return values
        if self.next == "{":
            return [self.group()]
        value = self.signs() * self.power()
        while self.starts_operand() and self.next.lstrip("\\") not in FUNCTIONS and self.next != "(":
            value = value * self.power()
        if self.next in OVER:
            self.take()
            value = value / self.power()
        return [value]


def _tokens(text):
    for token in TOKEN.findall(text):
        if token.isascii() and token.isalpha() and token not in FUNCTIONS and token != "sqrt" and len(token) > 1:
            names = WORD_SPLIT.findall(token)
            letters = {each for each in names if len(each) == 1}
            if token.lower() in WORDS or (len(letters) > MOST_LETTERS):
                raise Unreadable("a word: %s" % token)
            yield from names
        else:
            yield token


def _of_two(name, first, second):
    if name == "frac":
        return first / second
    if first.is_number and first > LARGEST_FACTORIAL:
        raise Unreadable("the binomial is too large")
    return sympy.binomial(first, second)


def _apply(name, base, arguments):
    if base is not None:
        return sympy.log(arguments[0], base)
    if name == "lg":
        return sympy.log(arguments[0], 10)
    if name == "log" and len(arguments) == 2:
        return sympy.log(arguments[1], arguments[0])
    return FUNCTIONS[name](*arguments)


def _power(base, exponent):
    if exponent.is_number and base.is_number and not exponent.is_Rational and exponent.has(sympy.Pow, sympy.factorial):
        exponent = (
            sympy.simplify(exponent) if exponent.is_algebraic and abs(sympy.N(exponent)) < LARGEST_POWER else None
        )
        if exponent is None:
            raise Unreadable("the power is too large")
    if exponent.is_Rational and not base.is_Rational and abs(exponent) > LARGEST_POWER:
        raise Unreadable("the power is too large")
    if base.is_Rational and exponent.is_Rational:
        bits = max(abs(base.p).bit_length(), base.q.bit_length()) * abs(exponent)
        if bits > MOST_POWER_BITS and base not in (0, 1, -1):
            raise Unreadable("the power is too large")
        if bits > LARGEST_POWER_BITS and base not in (0, 1, -1):
            return sympy.Pow(base, exponent, evaluate=False)
    return base**exponent


def _factorial(value):
    if value.is_number and not (value.is_Integer and value < 1_000_000):
        raise Unreadable("the factorial is too large")
    return sympy.factorial(value, evaluate=not (value.is_Integer and value > LARGEST_FACTORIAL))
