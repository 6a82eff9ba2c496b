"""All probes, by the noun that they are about."""

from support.probes import (
    communication,
    files,
    interpreters,
    kernel,
    languages,
    limits,
    memory,
    processes,
    signals,
    sockets,
    system_files,
    terminals,
    tools,
    users,
)
from support.probes.probe import Probe

_MODULES = (
    *(communication, files, interpreters, kernel, languages, limits, memory, processes),
    *(signals, sockets, system_files, terminals, tools, users),
)
PROBES_BY_MODULE: dict[str, tuple[Probe, ...]] = {module.__name__.rpartition(".")[2]: module.PROBES for module in _MODULES}
"""Probes of each module, by the module's name."""
ALL_PROBES: tuple[Probe, ...] = tuple(probe for probes in PROBES_BY_MODULE.values() for probe in probes)
