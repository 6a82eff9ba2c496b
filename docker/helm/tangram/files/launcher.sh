#!/bin/sh
# Start the launcher in a cgroup of its own below the cgroup of its container.
#
#   launcher.sh privileged|unprivileged COMMAND...
#
# The launcher makes a cgroup for each environment below /sys/fs/cgroup. In a privileged container this is the root of
# the machine, so that environments would escape the limits of the pod. In a cgroup namespace of the container's own,
# all environments together stay within these limits. A cgroup with child groups may contain no process itself, so the
# processes of the container move to the child `launcher`.
set -eu
mode=$1
shift

cgroup=/sys/fs/cgroup

if [ "$mode" = privileged ] && [ -f "$cgroup/cgroup.controllers" ]; then
  exec unshare --cgroup --mount --propagation private sh "$0" nested "$@"
fi
if [ "$mode" = nested ]; then
  # The kernel refuses the same file system at the same mount point.
  umount -l "$cgroup"
  mount -t cgroup2 cgroup2 "$cgroup"
fi
if [ -f "$cgroup/cgroup.controllers" ] && mkdir -p "$cgroup/launcher" 2>/dev/null; then
  while read -r pid; do
    # A process may have ended.
    echo "$pid" 2>/dev/null >"$cgroup/launcher/cgroup.procs" || true
  done <"$cgroup/cgroup.procs"
fi
exec "$@"
