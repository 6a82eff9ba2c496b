"""Ray tasks that run a program as a subprocess: tasks per second with 50 in flight, as one JSON object."""

import json
import os
import subprocess
import sys
import time

import ray

IN_FLIGHT = 50


@ray.remote
def run_true():
    return subprocess.run(["/bin/true"], check=True).returncode


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        _temp_dir=os.environ["PEER_DIRECTORY"],
        configure_logging=False,
        log_to_driver=False,
    )
    ray.get([run_true.remote() for _ in range(IN_FLIGHT)])
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        ray.get([run_true.remote() for _ in range(IN_FLIGHT)])
        done += IN_FLIGHT
    print(json.dumps({"done": done, "wall_s": time.perf_counter() - begun}))
    ray.shutdown()
