"""A lossless JSON codec for plain values that cross between the programs. Decoding never runs code.

Only exact types pass. A subclass, which could override `__eq__`, is rejected.
"""


class NotPlain(Exception):
    pass


def encode(value):
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return ["int", hex(value)]
    if kind is float:
        return ["float", value.hex()]
    if kind is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in (set, frozenset):
        # The iteration order of a set differs between processes.
        return [kind.__name__, sorted((encode(item) for item in value), key=repr)]
    if kind in (list, tuple):
        return [kind.__name__, [encode(item) for item in value]]
    if kind is dict:
        return ["dict", [[encode(key), encode(item)] for key, item in value.items()]]
    raise NotPlain(kind.__name__)


def decode(value):
    if value is None or isinstance(value, (bool, str)):
        return value
    kind, *rest = value
    if kind == "int":
        return int(rest[0], 16)
    if kind == "float":
        return float.fromhex(rest[0])
    if kind == "complex":
        return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind in ("list", "tuple", "set", "frozenset"):
        items = [decode(item) for item in rest[0]]
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in rest[0]}
    raise NotPlain(kind)
