from pathlib import Path

from arl_cpu.node.inventory import read_numa_nodes


def a_machine(directory: Path, **cpulists: str) -> Path:
    for node, cores in cpulists.items():
        (directory / node).mkdir()
        (directory / node / "cpulist").write_text(f"{cores}\n")
    return directory


class TestReadNumaNodes:
    def test_core_has_numa_node_that_kernel_reports(self, tmp_path: Path) -> None:
        machine = a_machine(tmp_path, node0="0-2,6", node1="3-5,7", has_cpu="0-7")
        assert read_numa_nodes((0, 2, 5, 6, 7), machine) == {0: 0, 2: 0, 6: 0, 5: 1, 7: 1}

    def test_numa_node_without_cores_is_ignored(self, tmp_path: Path) -> None:
        assert read_numa_nodes((0, 1), a_machine(tmp_path, node0="0-1", node1="")) == {}

    def test_single_numa_node_gives_no_topology(self, tmp_path: Path) -> None:
        assert read_numa_nodes((0, 1), a_machine(tmp_path, node0="0-7")) == {}

    def test_machine_without_numa_information_gives_no_topology(self, tmp_path: Path) -> None:
        assert read_numa_nodes((0, 1), tmp_path / "none") == {}
