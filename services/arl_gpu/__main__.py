import subprocess
import sys

from arl_gpu.models.python_function import function_problems
from arl_gpu.settings import GpuSettings
from arl_kit.settings import CHECK_SETTINGS, EXIT_BAD_SETTINGS, load_settings


def _check_functions() -> None:
    """Exit if a reward function cannot be imported. The user's modules stay out of this process."""
    argv = [sys.executable, "-P", "-m", "arl_gpu", CHECK_SETTINGS]
    if subprocess.run(argv, check=False).returncode:
        raise SystemExit(EXIT_BAD_SETTINGS)


if __name__ == "__main__":
    settings = load_settings(GpuSettings, find_problems=lambda given: function_problems(given.reward_functions))
    if settings.reward_functions:
        _check_functions()
    # A settings check ends above. These imports would take most of its time.
    from arl_gpu.app import build
    from arl_kit.http_server.server import serve

    serve(build(settings), settings, name="gpu")
