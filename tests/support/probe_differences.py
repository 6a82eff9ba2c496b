"""Differences between a sandbox and a plain container that are intended, each with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.probe import Probe

__all__ = ["DOCUMENTED", "DocumentedDifference", "documented_difference"]

_ONE_USER = "The user namespace of an environment has one user and one group, so no other owner exists in it"
_CHANGEABLE = "An action may change every file of its own copy of the image, for example to install packages"
_HOST = "The host template shows the node's programs and libraries and hides its other directories"
_HOME = "Programs of images are installed for root, so HOME is the home of root, also if the image has a user 1000"
_UNCOUNTED = "Without a memory cgroup, memory that is mapped by no process cannot be limited"
_NO_CGROUP = "Without a memory cgroup, no file tells a program its memory limit"
_REFUSED = "Operation not permitted\n"
_INVALID = "Invalid argument\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedDifference:
    """A probe's intended output and exit code in a sandbox, with the reason."""

    name: str
    reason: str
    output: str | None
    """None: not compared, because it differs between machines."""
    exit_code: int = 0
    templates: tuple[str, ...] = ("host", "image")
    without: str | None = None
    """Limit that the node does not enforce. None: the difference exists on all nodes."""


DOCUMENTED: Sequence[DocumentedDifference] = (
    DocumentedDifference(
        name="namespace_of_users",
        reason="A user namespace gives a program more of the kernel to attack; Docker's default refuses it too",
        output="1\n",
    ),
    DocumentedDifference(
        name="memory_policies",
        reason="The node places memory near the granted cores; Docker's default refuses the call too",
        output="EPERM 0\n",
    ),
    DocumentedDifference(name="user_cannot_change", reason=_ONE_USER, output=f"{_INVALID * 3}True\n", without="users"),
    DocumentedDifference(
        name="group_cannot_change", reason=_ONE_USER, output=f"{_INVALID}{_REFUSED * 2}", without="users"
    ),
    DocumentedDifference(
        name="system_files_belong_to_root",
        reason=_ONE_USER,
        output="1000 1000\n65534 65534\n1000 1000\n1000 1000\n",
        templates=("host",),
        without="users",
    ),
    DocumentedDifference(
        name="system_files_belong_to_root",
        reason="The programs of the host template belong to a user of the node, who does not exist in it",
        output="0 0\n65534 65534\n0 0\n0 0\n",
        templates=("host",),
    ),
    DocumentedDifference(
        name="system_files_belong_to_root",
        reason=_ONE_USER,
        output="1000 1000\n" * 4,
        templates=("image",),
        without="users",
    ),
    DocumentedDifference(
        name="home_of_root_is_named",
        reason="The directory /root of the host template is read-only and may contain programs of the node",
        output="/workspace\nroot:0:0:/workspace\n",
        templates=("host",),
    ),
    DocumentedDifference(
        name="system_directories_are_read_only",
        reason=_CHANGEABLE,
        output="".join(f"wrote {path}\n" for path in ["/", "/etc", "/usr", "/usr/bin", "/bin", "/lib", "/root"])
        + "end\n",
        templates=("image",),
    ),
    DocumentedDifference(
        name="other_parts_of_sys",
        reason="Devices, buses and modules of the node are not the action's",
        output="no /sys/block\nno /sys/bus\nno /sys/module\n",
    ),
    DocumentedDifference(
        name="home_is_that_of_passwd_and_writable", reason=_HOME, output="False True True\nx\n", templates=("image",)
    ),
    DocumentedDifference(
        name="java_home_and_network", reason=_HOME, output="false\nlo\ntrue\ntrue\n", templates=("image",)
    ),
    DocumentedDifference(
        name="files_of_logins_in_etc",
        reason=_HOST,
        output="no /etc/shells\nno /etc/login.defs\nno /etc/profile\n",
        templates=("host",),
    ),
    DocumentedDifference(name="anonymous_file_in_memory", reason=_UNCOUNTED, output="", exit_code=1, without="memory"),
    DocumentedDifference(name="program_runs_from_memory", reason=_UNCOUNTED, output="", exit_code=1, without="memory"),
    DocumentedDifference(
        name="shared_memory_of_system_v", reason=_UNCOUNTED, output="", exit_code=139, without="memory"
    ),
    DocumentedDifference(
        name="commands_of_system_v", reason=_UNCOUNTED, output="0\n0\n", exit_code=1, without="memory"
    ),
    DocumentedDifference(
        name="own_affinity",
        reason="Without a cpuset cgroup, a program could take cores that it was not granted",
        output="",
        exit_code=1,
        without="cpuset",
    ),
    *(
        DocumentedDifference(name=name, reason=_NO_CGROUP, output=None, without="memory")
        for name in (
            *("own_memory_limit_is_found_in_the_cgroup", "memory_limit_of_2_gib_is_found"),
            *("java_heap_fits_into_2_gib", "node_heap_fits_into_2_gib"),
            *("java_fills_its_heap_and_catches_the_error", "java_garbage_of_6_gib_is_collected"),
        )
    ),
)


def documented_difference(
    probe: Probe, template: str | None, enforcement: Mapping[str, str]
) -> DocumentedDifference | None:
    """Return the intended difference of the probe on a node with this enforcement, if any."""
    for each in DOCUMENTED:
        is_absent = each.without is None or enforcement.get(each.without) != "enforced"
        if each.name == probe.name and template in each.templates and is_absent:
            return each
    return None
