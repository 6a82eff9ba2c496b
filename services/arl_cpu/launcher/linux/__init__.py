"""Operating system interfaces: cgroups, processes, system calls."""
