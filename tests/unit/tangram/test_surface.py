"""The SDK has one import surface, and every public name of it is documented."""

import inspect
import types
import typing
from collections.abc import Iterator

import pytest

import arl_tangram

CLASSES = (
    arl_tangram.Tangram,
    arl_tangram.AsyncTangram,
    arl_tangram.Environment,
    arl_tangram.AsyncEnvironment,
    arl_tangram.EnvironmentFiles,
    arl_tangram.AsyncEnvironmentFiles,
    arl_tangram.EnvironmentSession,
    arl_tangram.AsyncEnvironmentSession,
)


def public_methods(cls: type) -> Iterator[tuple[str, typing.Any]]:
    for name in dir(cls):
        if not name.startswith("_"):
            yield name, inspect.getattr_static(cls, name)


def own_types(annotation: typing.Any) -> Iterator[type]:
    """Yield the classes of this project in an annotation, also inside generics and unions."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if annotation.__module__.startswith("arl_"):
            yield annotation
        return
    for part in typing.get_args(annotation):
        yield from own_types(part)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_public_method_is_documented(cls: type) -> None:
    assert cls.__doc__
    assert [name for name, member in public_methods(cls) if not inspect.getdoc(member)] == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_type_of_a_public_method_is_exported(cls: type) -> None:
    missing = set()
    for name, member in public_methods(cls):
        function = member.fget if isinstance(member, property) else member
        hints = typing.get_type_hints(function)
        found = {each.__name__ for hint in hints.values() for each in own_types(hint)}
        missing |= {(name, each) for each in found if each not in arl_tangram.__all__}
    assert missing == set()


def test_both_clients_have_the_same_methods() -> None:
    blocking, asynchronous = (
        {name: list(inspect.signature(member).parameters) for name, member in public_methods(cls)}
        for cls in (arl_tangram.Tangram, arl_tangram.AsyncTangram)
    )
    assert blocking == asynchronous


def test_every_exported_name_exists_and_is_documented() -> None:
    assert list(arl_tangram.__all__) == sorted(arl_tangram.__all__)
    undocumented = [
        name
        for name in arl_tangram.__all__
        if inspect.isclass(getattr(arl_tangram, name)) and not getattr(arl_tangram, name).__doc__
    ]
    assert undocumented == []
