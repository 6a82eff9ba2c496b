"""Conversion of a manager's specification to an agent's request."""

import posixpath
from collections.abc import Mapping

from arl_cpu.contract.executor import ExecSpec
from arl_cpu.launcher.agent.agent_request import AgentRequest, RequestMode
from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.isolation.mounts import WORKSPACE

__all__ = ["MISSING_PYTHON", "build_request", "host_variables"]

MISSING_PYTHON = "the template has no python3 in its PATH, which `source` needs; use `argv`, or another template"
_PYTHON = ("python3",)

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "PYTHON_CPU_COUNT",
)


def build_request(
    spec: ExecSpec,
    workspace: str,
    template_variables: Mapping[str, str],
    environment_variables: Mapping[str, str],
    user: str | None,
) -> AgentRequest:
    """Build the request.

    The variables of the action override those of the environment, which override the template's.
    """
    return AgentRequest(
        mode=_mode_of(spec),
        argv=spec.argv or _PYTHON,
        env={
            **template_variables,
            **_thread_variables(max(spec.cpu_milli, spec.max_cpu_milli)),
            **environment_variables,
            **spec.env,
        },
        cwd=posixpath.join(workspace, spec.cwd or ""),
        fetch=spec.fetch,
        files=spec.files,
        user=user,
        source=(spec.source or "").encode(errors="surrogatepass"),
    )


def host_variables(base_prefix: str, workspace: str) -> dict[str, str]:
    """Return the variables of the template `host`."""
    prefix = "" if base_prefix in ("/usr", "/usr/local") else f"{base_prefix}/bin:"
    return {
        "PATH": f"{prefix}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": workspace,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp" if workspace == WORKSPACE else workdir.temporary_path(workspace),  # noqa: S108  # private
    }


def _mode_of(spec: ExecSpec) -> RequestMode:
    if spec.session is not None:
        return "watch"
    if spec.argv is not None:
        return "run"
    return "source" if spec.source is not None else "files"


def _thread_variables(cpu_milli: int) -> dict[str, str]:
    return dict.fromkeys(_THREAD_VARIABLES, str(max(1, cpu_milli // 1000)))
