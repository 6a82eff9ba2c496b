"""LitServe: one worker, one API server, and its own batching."""

import os

import litserve

from arl_bench.gpu.padded_encoder import PaddedEncoder

BATCH = int(os.environ["PEER_BATCH"])
WAIT_S = float(os.environ["PEER_WAIT_S"])


class Reward(litserve.LitAPI):
    def setup(self, device):
        self.model = PaddedEncoder(os.environ["PEER_SERVICE"])

    def decode_request(self, request):
        return request["query"][0], request["prompts"][0]

    def batch(self, inputs):
        return list(inputs)

    def predict(self, given):
        return self.model.score_pairs(given if BATCH > 1 else [given])

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"rewards": [output] if BATCH > 1 else output}


if __name__ == "__main__":
    batching = {"max_batch_size": BATCH, "batch_timeout": WAIT_S} if BATCH > 1 else {}
    api = Reward(api_path="/get_reward", **batching)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PEER_PORT"]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
