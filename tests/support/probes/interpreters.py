"""Probes of the standard library of Python where it depends on the system."""

from support.probe import Probe, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "program_is_a_file",
        """
        import inspect, os, sys
        def f(): return 1
        print(os.path.basename(__file__), __name__, os.path.basename(sys.argv[0]), len(sys.argv), sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
        print(inspect.getsource(f).strip(), len(open(__file__).read()) > 100)
        """,
        "main.py __main__ main.py 1 True\ndef f(): return 1 True\n",
    ),
    python(
        "program_starts_itself_again",
        """
        import subprocess, sys
        if len(sys.argv) == 1:
            print(subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True).stdout.strip())
        else:
            print("child")
        """,
        "child\n",
    ),
    python(
        "own_modules_are_imported",
        """
        open("helper_module.py", "w").write("value = 5\\n"); open("copy.py", "w").write("mine = True\\n")
        import helper_module, copy
        print(helper_module.value, getattr(copy, "mine", False))
        """,
        "5 True\n",
    ),
    *(
        python(
            f"processes_by_{method}",
            f"""
            import multiprocessing as mp
            def square(x): return x * x
            if __name__ == "__main__":
                with mp.get_context("{method}").Pool(3) as pool:
                    print(pool.map(square, range(6)))
            """,
            "[0, 1, 4, 9, 16, 25]\n",
        )
        for method in ("fork", "spawn", "forkserver")
    ),
    python(
        "pools_of_futures",
        """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        def cube(x): return x ** 3
        if __name__ == "__main__":
            for kind in (ThreadPoolExecutor, ProcessPoolExecutor):
                with kind(3) as pool:
                    print(list(pool.map(cube, range(4))))
        """,
        "[0, 1, 8, 27]\n[0, 1, 8, 27]\n",
    ),
    python(
        "manager_of_multiprocessing",
        """
        import multiprocessing as mp
        if __name__ == "__main__":
            with mp.Manager() as manager:
                shared = manager.dict()
                child = mp.Process(target=shared.update, args=({"k": [1]},))
                child.start(); child.join(); print(dict(shared))
        """,
        "{'k': [1]}\n",
    ),
    python(
        "queues_and_pipes_of_multiprocessing",
        """
        import multiprocessing as mp
        def work(queue, pipe):
            queue.put("queued"); pipe.send("piped")
        if __name__ == "__main__":
            queue, (one, two) = mp.Queue(), mp.Pipe()
            child = mp.Process(target=work, args=(queue, two)); child.start()
            print(queue.get(), one.recv()); child.join(); print(child.exitcode)
        """,
        "queued piped\n0\n",
    ),
    python(
        "subprocesses_of_asyncio",
        """
        import asyncio
        async def main():
            child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            print((await child.communicate(b"async"))[0], child.returncode)
            shell = await asyncio.create_subprocess_shell("exit 3"); print(await shell.wait())
        asyncio.run(main())
        """,
        "b'async' 0\n3\n",
    ),
    python(
        "servers_of_asyncio",
        """
        import asyncio
        async def main():
            async def echo(reader, writer):
                writer.write(await reader.readline()); writer.close()
            async with await asyncio.start_server(echo, "localhost", 0) as server:
                reader, writer = await asyncio.open_connection("localhost", server.sockets[0].getsockname()[1])
                writer.write(b"line\\n"); print(await reader.readline())
            unix = await asyncio.start_unix_server(echo, "a.sock"); reader, writer = await asyncio.open_unix_connection("a.sock")
            writer.write(b"unix\\n"); print(await reader.readline())
        asyncio.run(main())
        """,
        "b'line\\n'\nb'unix\\n'\n",
    ),
    python(
        "standard_input_ends",
        """
        import sys
        print(repr(sys.stdin.read()), sys.stdin.isatty())
        try:
            input()
        except EOFError:
            print("end")
        """,
        "'' False\nend\n",
    ),
    python(
        "standard_input_is_read",
        """
        import sys
        print(input(), sys.stdin.readline().strip(), sys.stdin.read())
        """,
        "one two three\n",
        stdin="one\ntwo\nthree",
    ),
    python(
        "long_standard_input",
        """
        import sys
        print(len(sys.stdin.readline()), len(sys.stdin.read()))
        """,
        "100001 50000\n",
        stdin="x" * 100_000 + "\n" + "y" * 50_000,
    ),
    python(
        "standard_streams_are_pipes",
        """
        import os, stat, sys
        print([os.isatty(n) for n in range(3)], sys.stdout.isatty(), os.fstat(2).st_size >= 0, sys.stderr.fileno())
        """,
        "[False, False, False] False True 2\n",
    ),
    python(
        "temporary_files",
        """
        import os, tempfile
        with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f, tempfile.TemporaryFile() as g:
            f.write(b"x"); g.write(b"y"); print(os.path.isdir(d), os.path.exists(f.name))
        print(os.path.exists(d), os.access(tempfile.gettempdir(), os.W_OK))
        """,
        "True True\nFalse True\n",
    ),
    python(
        "log_to_files_and_streams",
        """
        import logging, logging.handlers, sys
        logging.basicConfig(handlers=[logging.FileHandler("log"), logging.FileHandler("/dev/stderr", mode="w"), logging.StreamHandler(sys.stdout)],
                            format="%(levelname)s %(message)s")
        logging.warning("written"); print(open("log").read().strip())
        """,
        "WARNING written\nWARNING written\n",
    ),
    python(
        "database_of_sqlite",
        """
        import sqlite3, threading
        base = sqlite3.connect("base.db"); print(base.execute("pragma journal_mode=wal").fetchone()[0])
        base.execute("create table t (x)"); base.executemany("insert into t values (?)", [(n,) for n in range(100)]); base.commit()
        print(sqlite3.connect("base.db").execute("select sum(x) from t").fetchone())
        """,
        "wal\n(4950,)\n",
    ),
    python(
        "ends_of_programs",
        """
        import subprocess, sys
        for code in ("import sys; sys.exit(3)", "raise SystemExit('text')", "1/0", "import os; os._exit(9)", "import os, signal; os.kill(os.getpid(), 11)",
                     "raise KeyboardInterrupt", "import atexit; atexit.register(print, 'bye')"):
            print(subprocess.run([sys.executable, "-c", code], stderr=-3, capture_output=False).returncode, flush=True)
        """,
        "3\n1\n1\n9\n-11\n-2\nbye\n0\n",
    ),
    python(
        "traceback_shows_lines",
        """
        import traceback
        try:
            {}["missing"]
        except KeyError:
            print(traceback.format_exc().splitlines()[2].strip())
        import warnings; warnings.simplefilter("always")
        """,
        '{}["missing"]\n',
    ),
    python("uncaught_exception_exits_with_1", "raise ValueError('probe')\n", "", exit_code=1),
    python("exit_code_of_the_program", "import sys; print('out'); sys.exit(42)\n", "out\n", exit_code=42),
    python(
        "output_is_not_lost_at_the_end",
        """
        import sys, threading, time
        threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
        sys.stdout.write("unflushed ")
        """,
        "unflushed thread\n",
    ),
    python(
        "seeds_differ_between_runs",
        """
        import random, subprocess, sys, uuid
        code = "import random; print(hash('x'), random.random())"
        runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() for _ in range(3)]
        print(len({r[0] for r in runs}), len({r[1] for r in runs}), uuid.uuid4() != uuid.uuid4(), isinstance(uuid.getnode(), int))
        """,
        "3 3 True True\n",
    ),
    python(
        "own_hash_seed_is_random",
        """
        import sys
        print(sys.flags.hash_randomization, sys.flags.isolated, sys.flags.no_site, sys.flags.dont_write_bytecode)
        """,
        "1 0 0 0\n",
    ),
    python(
        "modules_that_need_the_system",
        """
        import importlib
        for name in ("ssl", "sqlite3", "ctypes", "lzma", "bz2", "zlib", "readline", "curses", "zoneinfo", "hashlib", "uuid", "mmap", "resource", "fcntl",
                     "termios", "syslog", "multiprocessing.shared_memory", "decimal", "xml.etree.ElementTree", "unittest", "venv", "ensurepip"):
            try:
                importlib.import_module(name)
            except ImportError as error:
                print(error)
        import hashlib, ssl, zoneinfo
        print(hashlib.new("sha3_256", b"").digest_size, ssl.OPENSSL_VERSION_INFO[0] >= 1, zoneinfo.ZoneInfo("Europe/Berlin").key)
        """,
        "32 True Europe/Berlin\n",
    ),
    python(
        "tests_of_the_own_file",
        """
        import pytest, sys
        def test_passes(): assert 1 + 1 == 2
        if __name__ == "__main__":
            print("code", int(pytest.main(["-qq", "--no-header", "-p", "no:cacheprovider", __file__])))
        """,
        ".                                                                        [100%]\ncode 0\n",
        imports=("pytest",),
    ),
    sh(
        "tests_of_pytest_fail_with_1",
        """
        printf 'def test_a():\\n    assert 1 == 2\\ndef test_b(tmp_path, capfd):\\n    (tmp_path / "f").write_text("x")\\n' >test_it.py
        python3 -m pytest -q test_it.py >out 2>&1; echo $?; grep -oE '1 failed, 1 passed' out
        """,
        "1\n1 failed, 1 passed\n",
        needs=("python3",),
        imports=("pytest",),
    ),
    sh(
        "virtual_environment",
        "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'",
        "True\n",
        needs=("python3",),
    ),
    sh(
        "local_wheel_is_installed",
        """
        mkdir src && cd src && printf 'value = 11\\n' >probe_wheel.py
        python3 - <<'END'
        import zipfile
        with zipfile.ZipFile("probe_wheel-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write("probe_wheel.py")
            info = "probe_wheel-1.0.dist-info/"
            wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: probe_wheel\\nVersion: 1.0\\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: probe\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
            wheel.writestr(info + "RECORD", "probe_wheel.py,,\\n" + "".join(info + n + ",,\\n" for n in ("METADATA", "WHEEL", "RECORD")))
        END
        python3 -m pip install -q --no-index --no-deps --disable-pip-version-check --target ../site probe_wheel-1.0-py3-none-any.whl 2>&1 | grep -v WARNING
        cd ..; PYTHONPATH=site python3 -c 'import probe_wheel; print(probe_wheel.value)'
        """.replace("\n        ", "\n"),
        "11\n",
        needs=("python3",),
        imports=("pip",),
    ),
    sh(
        "package_is_installed_for_the_user",
        """
        python3 -c 'import site, os; print(site.getuserbase().startswith(os.path.expanduser("~")), site.ENABLE_USER_SITE)'
        """,
        "True True\n",
        needs=("python3",),
    ),
    sh(
        "virtual_environment_with_pip",
        "python3 -m venv v && v/bin/pip --version | cut -d' ' -f1",
        "pip\n",
        needs=("python3",),
        imports=("ensurepip",),
    ),
    sh(
        "module_and_command_forms",
        "echo 'print(__name__)' >m.py; python3 m.py; python3 -m m; echo 'print(2)' | python3; python3 -c 'import m'; python3 - a <m.py",
        "__main__\n__main__\n2\nm\n__main__\n",
        needs=("python3",),
    ),
    python(
        "compiled_files_are_cached",
        """
        import os
        open("cached.py", "w").write("x = 1\\n")
        import cached
        print([n for n in os.listdir("__pycache__") if n.startswith("cached")] != [])
        """,
        "True\n",
    ),
    python(
        "extension_is_loaded",
        """
        import ctypes, ctypes.util
        print(ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6").abs(-3))
        """,
        "3\n",
    ),
)
