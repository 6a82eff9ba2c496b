"""mosec: a front end in Rust, one worker process, and its own batching."""

import os
import sys

from mosec import Server, Worker

from arl_bench.gpu.padded_encoder import PaddedEncoder

BATCH = int(os.environ["PEER_BATCH"])


class Reward(Worker):
    def __init__(self):
        self.model = PaddedEncoder(os.environ["PEER_SERVICE"])

    def forward(self, data):
        asked = data if BATCH > 1 else [data]
        found = self.model.score_pairs([(each["query"][0], each["prompts"][0]) for each in asked])
        answers = [{"rewards": [score]} for score in found]
        return answers if BATCH > 1 else answers[0]


if __name__ == "__main__":
    options = {"--port": os.environ["PEER_PORT"], "--address": "127.0.0.1", "--timeout": "60000"}
    sys.argv[1:] = [word for option in options.items() for word in option] + ["--log-level", "warning"]
    server = Server()
    wait_ms = int(1000 * float(os.environ["PEER_WAIT_S"]))
    server.append_worker(Reward, num=1, max_batch_size=BATCH, max_wait_time=wait_ms, timeout=60, route="/get_reward")
    server.run()
