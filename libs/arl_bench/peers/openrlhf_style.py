"""A server like OpenRLHF's `serve_rm`: the model runs on the event loop, one request after the other."""

import os

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from arl_bench.gpu.padded_encoder import PaddedEncoder

app = FastAPI()
model = PaddedEncoder(os.environ["PEER_SERVICE"])


@app.post("/get_reward")
async def get_reward(request: Request) -> JSONResponse:
    asked = await request.json()
    rewards = model.score_pairs(list(zip(asked["query"], asked["prompts"], strict=True)))
    return JSONResponse({"rewards": rewards})


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PEER_PORT"]), log_level="warning", access_log=False)
