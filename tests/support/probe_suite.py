"""All probes, by the noun that they are about, and those that the gate runs."""

from support.probe import Probe
from support.probes import (
    communication,
    file_contents,
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

__all__ = ["ALL_PROBES", "GATE_NAMES", "GATE_PROBES", "PROBES_BY_MODULE"]

_MODULES = (
    *(communication, file_contents, files, interpreters, kernel, languages, limits, memory, processes),
    *(signals, sockets, system_files, terminals, tools, users),
)
_GATE = """
bash_features daemon_is_adopted deep_directories devices_of_terminals_exist epoll_poll_and_select
extended_attributes_of_own_files file_size_is_limited_by_a_harness fifo_connects_two_processes flock_command
git_commits_and_diffs group_cannot_change hard_limits_of_the_shell here_documents home_is_that_of_passwd_and_writable
inotify_on_own_files interfaces_by_getifaddrs ip_command_shows_loopback list_of_interfaces local_socket_in_a_file
memory_of_a_child_is_read mount_of_root_and_proc_are_listed names_of_the_own_machine nameless_file_gets_a_name
own_memory_limit_is_found_in_the_cgroup pair_of_terminals parent_attaches_to_its_child parent_traces_its_child
path_holds_the_usual_directories process_substitution processes_by_fork processors_in_sys program_is_a_file
programs_run_from_temporary_directories reservation_of_64_gib script_command script_with_shebang
shared_memory_of_system_v sparse_file_of_1_gib standard_input_is_read standard_streams_by_name
system_files_belong_to_root tcp_on_loopback_of_ipv6 temporary_directories_are_writable timerfd_eventfd_and_signalfd
traced_program_of_strace two_hundred_threads umask_applies user_is_in_passwd whoami_names_a_user
"""
GATE_NAMES = frozenset(_GATE.split())
"""Names of quick probes, some of each module, which the gate runs."""
PROBES_BY_MODULE: dict[str, tuple[Probe, ...]] = {
    module.__name__.rpartition(".")[2]: module.PROBES for module in _MODULES
}
"""Probes of each module, by the module's name."""
ALL_PROBES: tuple[Probe, ...] = tuple(probe for probes in PROBES_BY_MODULE.values() for probe in probes)
GATE_PROBES: tuple[Probe, ...] = tuple(probe for probe in ALL_PROBES if probe.name in GATE_NAMES)
