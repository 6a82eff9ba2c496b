"""From what a manager asks for to what an agent is told."""

import posixpath
from collections.abc import Mapping

from arl_cpu.executor import ExecSpec

from . import interpreter, workdir
from .mounts import WORKSPACE
from .orders import Mode, Order

__all__ = ["host_variables", "order_for"]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHON_CPU_COUNT")


def order_for(spec: ExecSpec, workspace: str, given: Mapping[str, str], kept: Mapping[str, str]) -> Order:
    """`given` are the variables of the template, `kept` those of the environment."""
    return Order(
        mode=_mode_of(spec),
        argv=spec.argv or interpreter.COMMAND,
        env={**given, **_threads(max(spec.cpu_milli, spec.widest_cpu_milli)), **kept, **spec.env},
        cwd=posixpath.join(workspace, spec.cwd or ""),
        fetch=spec.fetch,
        files=spec.files,
        source=(spec.source or "").encode(errors="surrogatepass"),
    )


def host_variables(base_prefix: str, workspace: str) -> dict[str, str]:
    """Of the template `host`."""
    prefix = "" if base_prefix in ("/usr", "/usr/local") else f"{base_prefix}/bin:"
    return {
        "PATH": f"{prefix}/usr/local/bin:/usr/bin:/bin",
        "HOME": workspace,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp" if workspace == WORKSPACE else workdir.temporary(workspace),  # noqa: S108  # its own
    }


def _mode_of(spec: ExecSpec) -> Mode:
    if spec.session is not None:
        return "watch"
    if spec.argv is not None:
        return "run"
    return "source" if spec.source is not None else "files"


def _threads(cpu_milli: int) -> dict[str, str]:
    return dict.fromkeys(_THREADS, str(max(1, cpu_milli // 1000)))
