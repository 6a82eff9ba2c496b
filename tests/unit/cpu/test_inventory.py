from pathlib import Path

from arl_cpu.node.inventory import read_numa_nodes


def a_machine(directory: Path, **cpulists: str) -> Path:
    for node, cores in cpulists.items():
        (directory / node).mkdir()
        (directory / node / "cpulist").write_text(f"{cores}\n")
    return directory


class TestNumaNodesOf:
    def test_each_offered_core_has_the_node_that_the_kernel_lists_it_under(self, tmp_path: Path) -> None:
        machine = a_machine(tmp_path, node0="0-2,6", node1="3-5,7", has_cpu="0-7")
        assert read_numa_nodes((0, 2, 5, 6, 7), machine) == {0: 0, 2: 0, 6: 0, 5: 1, 7: 1}

    def test_a_node_without_cores_is_none_of_ours(self, tmp_path: Path) -> None:
        assert read_numa_nodes((0, 1), a_machine(tmp_path, node0="0-1", node1="")) == {}

    def test_one_node_is_no_topology(self, tmp_path: Path) -> None:
        assert read_numa_nodes((0, 1), a_machine(tmp_path, node0="0-7")) == {}

    def test_a_machine_that_does_not_say_has_no_topology(self, tmp_path: Path) -> None:
        assert read_numa_nodes((0, 1), tmp_path / "none") == {}
