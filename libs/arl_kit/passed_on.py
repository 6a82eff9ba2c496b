"""What a process passes on of its environment to those that it starts: no variable that is meant for secrets."""

from collections.abc import Mapping

__all__ = ["passed_on"]

ALWAYS = ("PATH", "HOME", "LANG", "TZ")
LIBRARIES = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Where a cluster's modules put the driver's libraries, and torch."""
OF_DEVICES = ("CUBLAS_", "CUDA_", "NCCL_", "NVIDIA_", "PYTORCH_", "TORCH_")
"""What such names begin with. A batch scheduler says in CUDA_VISIBLE_DEVICES which GPUs are its job's."""

OF_THE_INTERNET = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""In capitals or not: by what way one gets there, and whom one believes."""


def passed_on(environment: Mapping[str, str], *, devices: bool = False, internet: bool = False) -> dict[str, str]:
    """`devices`: to a process that computes on devices, or that starts one. `internet`: to one that calls others'."""
    return {
        name: value
        for name, value in environment.items()
        if name in ALWAYS
        or (devices and (name in LIBRARIES or name.startswith(OF_DEVICES)))
        or (internet and name.upper() in OF_THE_INTERNET)
    }
