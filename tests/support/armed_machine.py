"""Run `arl_local` as `tangram up` does, with services that a test can arm with failpoints."""

import sys
from pathlib import Path

from arl_local.__main__ import main
from arl_local.process_plan import DEFAULT_COMMANDS, SERVICES

ARMED = (sys.executable, str(Path(__file__).with_name("armed_service.py")))

if __name__ == "__main__":
    directory = sys.argv[sys.argv.index("--dir") + 1]
    raise SystemExit(main(commands=dict(DEFAULT_COMMANDS) | {name: (*ARMED, directory, name) for name in SERVICES}))
