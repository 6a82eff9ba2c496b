"""Waiting for a GPU without keeping a core busy."""

__all__ = ["wait_for_gpu"]


def wait_for_gpu() -> None:
    """What was given to this process's GPU is computed.

    Where torch itself waits, as for a number of a tensor, it may spin: a core for each GPU, and CPU time that no
    forward took.
    """
    import torch  # where there is a GPU, there is torch

    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()
