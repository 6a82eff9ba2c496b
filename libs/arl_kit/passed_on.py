"""What a process passes on of its environment to those that it starts: no variable that is meant for secrets."""

from collections.abc import Mapping

__all__ = ["passed_on"]

ALWAYS = ("PATH", "HOME", "LANG", "TZ")
LIBRARIES = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Where a cluster's modules put the driver's libraries, and torch."""
OF_DEVICES = ("CUBLAS_", "CUDA_", "NCCL_", "NVIDIA_", "PYTORCH_", "TORCH_")
"""What such names begin with. A batch scheduler says in CUDA_VISIBLE_DEVICES which GPUs are its job's."""


def passed_on(environment: Mapping[str, str], *, devices: bool = False) -> dict[str, str]:
    """`devices`: to a process that computes on devices, or that starts one."""
    return {name: value for name, value in environment.items() if _is_passed_on(name, devices=devices)}


def _is_passed_on(name: str, *, devices: bool) -> bool:
    return name in ALWAYS or (devices and (name in LIBRARIES or name.startswith(OF_DEVICES)))
