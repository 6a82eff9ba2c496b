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
    yield f"the paper: ACT {PAPER_RESULTS['act_gain']}x, step {PAPER_RESULTS['step_gain']}x, {PAPER_RESULTS['saved']:.1%} saved"
    yield f"({PAPER_RESULTS['conditions']})"
