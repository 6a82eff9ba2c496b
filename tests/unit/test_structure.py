"""Limits of the code's structure. `python tests/support/structure.py` prints every measure."""

from support import structure

MODULES = structure.source_modules()
MAX_MODULES_PER_FOLDER = 15
MAX_FILE_LINES = 400
MAX_SHORT_MODULES = 20
MAX_ONE_WORD_SHARE = 0.10
REPEATED_CLASS_NAMES = {"Reward": "arl_bench.peers."}
"""Class names that several modules may define, and where. Each program of `peers` runs under its own server."""
SQL_MODULES = {
    "arl_store.migrate": "creates roles, keys and partitions as the owner, before any service runs",
    "arl_store.logins": "creates the roles of services and nodes, as the owner",
    "arl_store.tables": "defines the tables",
    "arl_store.guards": "generates the grants and the trigger from the state machine",
    "arl_store.wake": "listens and notifies",
    "arl_store.tx": "begins transactions and checks the connection",
}
"""Modules that may hold SQL although they are no repositories, and the reason."""


def test_folders_hold_at_most_15_modules() -> None:
    folders = structure.modules_per_folder(MODULES)
    assert not {str(folder): count for folder, count in folders.items() if count > MAX_MODULES_PER_FOLDER}


def test_modules_have_no_import_cycles() -> None:
    assert structure.import_cycles(structure.import_graph(MODULES)) == []


def test_class_names_are_defined_once() -> None:
    repeated = structure.repeated_class_names(MODULES)
    assert not {
        name: modules
        for name, modules in repeated.items()
        if name not in REPEATED_CLASS_NAMES or not all(each.startswith(REPEATED_CLASS_NAMES[name]) for each in modules)
    }


def test_at_most_a_tenth_of_class_names_are_one_word() -> None:
    one_word = structure.one_word_class_names(MODULES)
    assert len(one_word) / structure.class_name_count(MODULES) <= MAX_ONE_WORD_SHARE, one_word


def test_files_have_at_most_400_lines() -> None:
    assert not {each.name: each.lines for each in MODULES if each.lines > MAX_FILE_LINES}


def test_sql_is_in_queries_and_repositories() -> None:
    assert set(structure.modules_with_sql(MODULES)) <= SQL_MODULES.keys()


def test_allowed_sql_modules_exist() -> None:
    assert SQL_MODULES.keys() <= {each.name for each in MODULES}


def test_at_most_20_modules_are_shorter_than_40_lines() -> None:
    short = {each.name: each.lines for each in structure.short_modules(MODULES)}
    assert len(short) <= MAX_SHORT_MODULES, short
