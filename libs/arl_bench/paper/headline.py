"""What the paper says, to stand beside every comparison of ours."""

from collections.abc import Iterator

__all__ = ["PAPER_RESULTS", "paper_result_lines"]

PAPER_RESULTS = {
    "act_gain": 4.3,
    "step_gain": 1.5,
    "saved": 0.712,
    "conditions": "arXiv 2603.13019: «up to», against static provisioning, on its authors' clusters and workloads",
}


def paper_result_lines() -> Iterator[str]:
    """For people."""
    act, step, saved = (PAPER_RESULTS[name] for name in ("act_gain", "step_gain", "saved"))
    yield f"the paper: ACT {act}x, step {step}x, {saved:.1%} saved"
    yield f"({PAPER_RESULTS['conditions']})"
