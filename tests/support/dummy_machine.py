"""Run `arl_local` with a real Postgres, real supervision and dummy services."""

import sys
from pathlib import Path

from arl_local.__main__ import main
from arl_local.process_plan import DEFAULT_COMMANDS

DUMMY = (sys.executable, "-S", str(Path(__file__).with_name("dummy_service.py")))

if __name__ == "__main__":
    raise SystemExit(main(commands=dict.fromkeys(DEFAULT_COMMANDS, DUMMY)))
