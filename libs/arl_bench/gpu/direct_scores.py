"""A service without the system: it reads items as JSON on standard input and writes scores to standard output.

`python -m arl_bench.gpu.direct_scores SERVICE` serves as the reference of benchmarks, and to verify single scores.
"""

import json
import sys

from arl_gpu.catalog.service_files import installed_services
from arl_gpu.models.loader import load

__all__ = ["score_directly"]

BATCH_ITEMS = 256


def score_directly(service: str, pairs: list[tuple[str, str]]) -> list[float | None]:
    """Return a score or None for each pair. Raises `LookupError` if the service is not installed."""
    files = next(iter(installed_services([service])), None)
    if files is None:
        raise LookupError(f"{service} is not installed")
    model = load(files.spec)
    items = [{"text": text, "reference": reference} for text, reference in pairs]
    found: list[float | None] = []
    for start in range(0, len(items), BATCH_ITEMS):
        entries = model.score(items[start : start + BATCH_ITEMS], model.weights.content).entries
        found += [entry.get("score") for entry in entries]
    return found


if __name__ == "__main__":
    json.dump(score_directly(sys.argv[1], [(text, reference) for text, reference in json.load(sys.stdin)]), sys.stdout)
