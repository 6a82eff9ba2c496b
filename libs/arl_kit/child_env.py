"""What a process passes on of its environment to those that it starts: no variable that is meant for secrets."""

from collections.abc import Mapping

__all__ = ["child_environment"]

BASE_VARIABLES = ("PATH", "HOME", "LANG", "TZ")
LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Where a cluster's modules put the driver's libraries, and torch."""
DEVICE_PREFIXES = ("CUBLAS_", "CUDA_", "NCCL_", "NVIDIA_", "PYTORCH_", "TORCH_")
"""What such names begin with. A batch scheduler says in CUDA_VISIBLE_DEVICES which GPUs are its job's."""

NETWORK_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""In capitals or not: by what way one gets there, and whom one believes."""


def child_environment(
    environment: Mapping[str, str], *, devices: bool = False, network: bool = False
) -> dict[str, str]:
    """`devices`: to a process that computes on devices, or that starts one. `internet`: to one that calls others'."""
    return {
        name: value
        for name, value in environment.items()
        if name in BASE_VARIABLES
        or (devices and (name in LIBRARY_VARIABLES or name.startswith(DEVICE_PREFIXES)))
        or (network and name.upper() in NETWORK_VARIABLES)
    }
