"""What the paper says, to stand beside every comparison of ours."""

from collections.abc import Iterator

__all__ = ["HEADLINE", "headline"]

HEADLINE = {
    "act_gain": 4.3,
    "step_gain": 1.5,
    "saved": 0.712,
    "conditions": "arXiv 2603.13019: «up to», against static provisioning, on its authors' clusters and workloads",
}


def headline() -> Iterator[str]:
    """For people."""
    yield f"the paper: ACT {HEADLINE['act_gain']}x, step {HEADLINE['step_gain']}x, {HEADLINE['saved']:.1%} saved"
    yield f"({HEADLINE['conditions']})"
