"""Ray Serve: one replica, one proxy, and its own batching."""

import os
import signal
import threading

import ray
from ray import serve
from starlette.requests import Request

BATCH = int(os.environ["PEER_BATCH"])
WAIT_S = float(os.environ["PEER_WAIT_S"])
SERVICE = os.environ["PEER_SERVICE"]


@serve.deployment(num_replicas=1, max_ongoing_requests=64)
class Reward:
    def __init__(self):
        from arl_bench.gpu.padded_encoder import PaddedEncoder  # imported in the replica, so it is not sent there

        self.model = PaddedEncoder(SERVICE)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT_S)
    async def scored(self, asked):
        return self.model.score_pairs([(each["query"][0], each["prompts"][0]) for each in asked])

    async def __call__(self, request: Request):
        return {"rewards": [await self.scored(await request.json())]}


if __name__ == "__main__":
    ended = threading.Event()
    directory = os.environ["PEER_DIRECTORY"]
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=directory, configure_logging=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PEER_PORT"])})
    serve.run(Reward.bind(), route_prefix="/get_reward")
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    serve.shutdown()
    ray.shutdown()
