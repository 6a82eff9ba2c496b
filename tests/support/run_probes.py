"""Run all probes behind a command prefix and print each difference from the expected output.

`python tests/support/run_probes.py [-k WORD] PREFIX...`. With the prefix
`podman run -i --rm --user 1000 --network none --memory 2g -w /home/user IMAGE` they run in a plain container, which gives the
expected values. The image needs Python; probes whose commands are missing are skipped.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.probe import Probe
from support.probe_suite import ALL_PROBES

INSIDE = """
import importlib.util, json, os, shutil, subprocess, sys, tempfile, time
home = os.getcwd()
for probe in json.load(sys.stdin):
    missing = [n for n in probe["needs"] if not shutil.which(n)]
    missing += [n for n in probe["imports"] if not importlib.util.find_spec(n)]
    if missing:
        print(json.dumps({"name": probe["name"], "missing": missing}), flush=True)
        continue
    place = tempfile.mkdtemp(dir=home)
    for name, text in probe["files"].items():
        with open(os.path.join(place, name), "w") as file:
            file.write(text)
    begin = time.monotonic()
    child = subprocess.Popen(probe["argv"], cwd=place, env={**os.environ, **probe["env"]}, stdin=-1, stdout=-1, stderr=-1,
                             start_new_session=True)
    try:
        out, err = child.communicate(probe["stdin"].encode(), timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        out, err = child.communicate()
        err += b"timeout"
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    print(json.dumps({"name": probe["name"], "code": code, "out": out.decode(errors="replace")[:4000],
        "err": err.decode(errors="replace")[-700:], "s": round(time.monotonic() - begin, 2)}), flush=True)
    os.chdir(home)
    subprocess.run(["rm", "-rf", place], stderr=-3)
"""


def run(probes: Sequence[Probe], prefix: Sequence[str]) -> list[dict[str, object]]:
    """Run the probes behind the prefix and return what each did."""
    command = [*prefix, "python3", "-c", INSIDE]
    given = json.dumps([asdict(each) for each in probes])
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="run probes whose name has this word")
    parser.add_argument("--slow", type=float, default=3.0, help="name probes that take this many seconds")
    parser.add_argument("prefix", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    probes = {
        probe.name: probe
        for probe in ALL_PROBES
        if given.k in probe.name and probe.machine in (None, os.uname().machine)
    }
    results = run(list(probes.values()), given.prefix)
    different = skipped = 0
    for each in results:
        probe = probes[str(each["name"])]
        if "missing" in each:
            skipped += 1
            print(f"skipped    {probe.name}: without {each['missing']}")
        elif (each["out"], each["code"]) != (probe.output, probe.exit_code):
            different += 1
            print(f"different  {probe.name}\n    expected {probe.exit_code} {probe.output!r}")
            print(f"    got      {each['code']} {each['out']!r}\n    stderr   {str(each['err'])!r}")
        elif float(str(each["s"])) > given.slow:
            print(f"slow       {probe.name}: {each['s']} s")
    print(f"{len(results)} of {len(probes)} run, {skipped} skipped, {different} different")
    return 1 if different or len(results) < len(probes) else 0


if __name__ == "__main__":
    sys.exit(main())
