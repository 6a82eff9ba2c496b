"""Send the same calls with SWE-ReX's client to its own server and to ours, and compare the answers.

`python swerex_runtime.py DIRECTORY URL KEY`: packages installed to the directory. Prints JSON: by case, both answers.
"""

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from swerex.deployment.remote import RemoteDeployment
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

ROOM = f"/tmp/rex-{os.getpid()}"
"""A directory for SWE-ReX's server on this machine and for our environment."""
QUIET = logging.getLogger("quiet")
QUIET.setLevel(logging.CRITICAL + 1)


def bash(command: str, **options: Any) -> BashAction:
    return BashAction(command=command, **{"timeout": 10, "check": "silent", **options})


IN_SESSIONS = {
    "create": CreateBashSessionRequest(startup_timeout=5),
    "twice": CreateBashSessionRequest(startup_timeout=5),
    "nowhere": bash("echo hi", session="nowhere"),
    "plain": bash("echo hi"),
    "no newline": bash("printf hi"),
    "cd": bash("cd /tmp"),
    "cd persists": bash("pwd"),
    "export": bash("export GREETING='hello there'; unexported=1"),
    "export persists": bash("echo $GREETING $unexported; sh -c 'echo [$unexported]'"),
    "function": bash("double() { echo $(($1 * 2)); }"),
    "function persists": bash("double 21"),
    "lines": bash("echo one\necho two\nx=3\necho $x"),
    "a loop over lines": bash("for i in 1 2 3\ndo\n  echo $i\ndone"),
    "heredoc": bash("cat <<'EOF'\na $x\nb\nEOF"),
    "heredoc to a file": bash("cat > there.txt <<EOF\nx is $x\nEOF"),
    "from the file": bash("cat there.txt; rm there.txt"),
    "continued": bash("echo a \\\n  b"),
    "comment": bash("# nothing"),
    "empty": bash(""),
    "wrong syntax": bash("echo begun\nfor"),
    "quote that does not end": bash("echo 'abc"),
    "after wrong syntax": bash("echo fine"),
    "code": bash("(exit 3)"),
    "code ignored": bash("(exit 3)", check="ignore"),
    "code raised": bash("echo before; (exit 3)", check="raise", error_msg="It went wrong"),
    "code raised, 0": bash("true", check="raise"),
    "not found": bash("nosuchprogram"),
    "signal": bash("sh -c 'kill -9 $$'"),
    "last counts": bash("false; true"),
    "to stderr": bash("echo out; echo err >&2"),
    "unicode": bash("echo 'grüße, 世界 🦀'"),
    "colours": bash(r"printf '\033[31mred\033[0m\n'"),
    "bytes": bash(r"printf '\xff\xfe\n'"),
    "tab and return": bash(r"printf 'a\tb\r\nc\n'"),
    "long": bash("seq 1 60000"),
    "a long line": bash("head -c 200000 /dev/zero | tr '\\0' x"),
    "is a terminal": bash("test -t 1 && test -t 0 && echo terminal"),
    "endless": bash("sleep 100", timeout=0.6),
    "interrupt": BashInterruptAction(),
    "after an interrupt": bash("echo fine"),
    "reads": bash("read line; echo got $line", timeout=0.6),
    "interrupt of a reader": BashInterruptAction(),
    "python reads": bash("python3 -c 'input()'", timeout=1.5),
    "interrupt of python": BashInterruptAction(),
    "idle interrupt": BashInterruptAction(),
    "nowhere's interrupt": BashInterruptAction(session="nowhere"),
    "second": CreateBashSessionRequest(session="second", startup_timeout=5),
    "apart": bash("echo [$GREETING]", session="second"),
    "kept": bash("echo [$GREETING]"),
    "variables": bash("set -u; echo ${nothing:-unset}; set +u"),
    "pipe": bash("printf 'b\\na\\n' | sort"),
    "in the background": bash("sleep 0.01 & wait; echo waited", check="ignore"),
    "traced": bash("set -x; echo hi; set +x", check="ignore"),
    "errexit in a subshell": bash("(set -e; false; echo no); echo $?"),
    "aliases": bash("alias hello='echo hello'\nhello"),
    "an array": bash("a=(1 2 3); declare -A m; m[k]=v"),
    "an array persists": bash("echo ${a[1]} ${m[k]} ${#a[@]}"),
    "exclamation": bash("echo 'wow!' \"$x!\""),
    "quotes": bash("""echo "it's" 'a "b"' $'c\\td' \\\\"""),
    "interactive": bash("python3 -q", is_interactive_command=True, expect=[">>> "]),
    "end of it": bash("exit()", is_interactive_quit=True),
    "close": CloseBashSessionRequest(),
    "closed": bash("echo hi"),
    "close again": CloseBashSessionRequest(),
    "anew": CreateBashSessionRequest(startup_timeout=5),
    "new": bash("echo [$GREETING]"),
    "sourced": CreateBashSessionRequest(
        session="third", startup_source=[f"{ROOM}/startup", "/nowhere"], startup_timeout=5
    ),
    "what was sourced": bash("echo $FROM_STARTUP", session="third"),
    "exit": bash("echo bye; exit 3", session="third"),
    "after an exit": bash("echo hi", session="third"),
}
PROGRAMS = {
    "shell": Command(command="echo out; echo err >&2; exit 3", shell=True),
    "list": Command(command=["printf", "%s|", "a b", "$HOME"]),
    "list in a shell": Command(command=["echo $0 $1", "zero", "one"], shell=True),
    "text is a program": Command(command="echo hi"),
    "no program": Command(command=["nosuchprogram"]),
    "no program elsewhere": Command(command=["nosuchprogram"], cwd="/tmp"),
    "not executable": Command(command=["/etc/passwd"]),
    "check": Command(command="echo out; exit 2", shell=True, check=True, error_msg="It went wrong"),
    "check, 0": Command(command=["true"], check=True),
    "signal": Command(command="kill -9 $$", shell=True),
    "merged": Command(command="echo out; echo err >&2; exit 4", shell=True, merge_output_streams=True),
    "cwd": Command(command=["pwd"], cwd="/tmp"),
    "cwd is not there": Command(command=["pwd"], cwd="/nowhere/at/all"),
    "cwd is a file": Command(command=["pwd"], cwd="/etc/passwd"),
    "variables": Command(command="echo $A-$B-$HOME", shell=True, env={"A": "1 2", "B": "ü=3"}),
    "endless": Command(command=["sleep", "100"], timeout=0.5),
    "endless in a shell": Command(command="echo begun; sleep 20", shell=True, timeout=0.5),
    "no input": Command(command="cat; echo end", shell=True),
    "bytes": Command(command=r"printf '\377\n'", shell=True),
    "long": Command(command=["seq", "1", "60000"]),
    "write": WriteFileRequest(path=f"{ROOM}/deep/a.txt", content="grüße\r\nend"),
    "read": ReadFileRequest(path=f"{ROOM}/deep/a.txt"),
    "write over": WriteFileRequest(path=f"{ROOM}/deep/a.txt", content=""),
    "read nothing": ReadFileRequest(path=f"{ROOM}/deep/a.txt"),
    "write latin": Command(command=f"printf 'gr\\374n' > {ROOM}/latin", shell=True),
    "read latin": ReadFileRequest(path=f"{ROOM}/latin", encoding="latin-1"),
    "read latin as it is not": ReadFileRequest(path=f"{ROOM}/latin", errors="replace"),
    "read no UTF-8": ReadFileRequest(path=f"{ROOM}/latin"),
    "read by no encoding": ReadFileRequest(path=f"{ROOM}/latin", encoding="klingon"),
    "read what is not there": ReadFileRequest(path=f"{ROOM}/nothing"),
    "read a directory": ReadFileRequest(path=f"{ROOM}"),
    "write where none may": WriteFileRequest(path="/proc/nothing", content=""),
    "write to a directory": WriteFileRequest(path=f"{ROOM}", content=""),
    "upload a file": UploadRequest(source_path=sys.argv[0], target_path=f"{ROOM}/script.py"),
    "uploaded": Command(command=["sh", "-c", f"wc -c < {ROOM}/script.py"]),
}


async def asked(runtime: Any, what: Any) -> dict[str, Any]:
    calls = {
        CreateBashSessionRequest: "create_session",
        CloseBashSessionRequest: "close_session",
        Command: "execute",
        ReadFileRequest: "read_file",
        WriteFileRequest: "write_file",
        UploadRequest: "upload",
    }
    try:
        answer = await getattr(runtime, calls.get(type(what), "run_in_session"))(what)
    except Exception as error:  # noqa: BLE001 - it is what is compared
        kind = type(error)
        return {"raised": f"{kind.__module__}.{kind.__name__}", "message": str(error), **_info(error)}
    return dict(answer.model_dump())


def _info(error: Exception) -> dict[str, Any]:
    info = {name: text for name, text in getattr(error, "extra_info", {}).items() if name.startswith("bash_")}
    return {"info": info} if info else {}


async def time_of(runtime: Any) -> float:
    began = time.perf_counter()
    for _ in range(20):
        await runtime.run_in_session(bash("echo hi", session="timed"))
    return (time.perf_counter() - began) / 20


@contextmanager
def their_server() -> Iterator[str]:
    """Run SWE-ReX's server without this process's variables and start-up files; yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        variables = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb", "PYTHONPATH": sys.argv[1]}
        command = [
            sys.executable,
            "-m",
            "swerex.server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--auth-token",
            "t",
        ]
        server = subprocess.Popen(
            command, env=variables, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


async def deployed(host: str, key: str) -> RemoteDeployment:
    deployment = RemoteDeployment(auth_token=key, host=host, logger=QUIET, timeout=5)
    await deployment.start()
    await deployment.runtime.wait_until_alive(timeout=30)
    return deployment


async def compared(theirs: str, ours: str, key: str) -> dict[str, Any]:
    deployments = [await deployed(theirs, "t"), await deployed(ours, key)]
    both = [each.runtime for each in deployments]
    found: dict[str, Any] = {"alive": [(await each.is_alive()).is_alive for each in deployments]}
    startup = WriteFileRequest(path=f"{ROOM}/startup", content="export FROM_STARTUP=yes\necho started\n")
    for runtime in both:
        await runtime.write_file(startup)
    for name, what in [*IN_SESSIONS.items(), *((f"program: {name}", what) for name, what in PROGRAMS.items())]:
        found[name] = [await asked(runtime, what) for runtime in both]
    found["tree"] = [await uploaded_tree(runtime) for runtime in both]
    for runtime in both:
        await runtime.create_session(CreateBashSessionRequest(session="timed", startup_timeout=5))
    found["seconds"] = [await time_of(runtime) for runtime in both]
    for each in deployments:
        await each.stop()
    return found


async def uploaded_tree(runtime: Any) -> str:
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "tree", "below")
        tree.mkdir(parents=True)
        (tree / "a.txt").write_text("a")
        (tree / "run.sh").write_text("echo ran")
        await runtime.upload(UploadRequest(source_path=f"{directory}/tree", target_path=f"{ROOM}/tree"))
    listed = await runtime.execute(Command(command=f"cd {ROOM}/tree && find . | sort; sh below/run.sh", shell=True))
    return str(listed.stdout)


if __name__ == "__main__":
    said = os.dup(1)
    os.dup2(2, 1)  # its client prints
    try:
        with their_server() as theirs:
            answers = asyncio.run(compared(theirs, sys.argv[2], sys.argv[3]))
    finally:
        shutil.rmtree(ROOM, ignore_errors=True)
    os.write(said, json.dumps(answers).encode())
