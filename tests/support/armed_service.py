"""Start the named service in this process, with the failpoint that is armed for it, if any.

As a script, `armed_service.py DIRECTORY SERVICE`: it is what the supervisor of `armed_machine` starts.
"""

import os
import sys
from pathlib import Path

QUICK = {"scheduler": {"TANGRAM_LEADER_TTL_S": "2"}}

if __name__ == "__main__":
    directory, service = Path(sys.argv[1]), sys.argv[2]
    os.environ.update(QUICK.get(service, {}))
    armed = directory / f"{service}.failpoint"
    if armed.exists():
        os.environ["TANGRAM_FAILPOINTS"] = armed.read_text()
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"arl_{service}", *sys.argv[3:]])
