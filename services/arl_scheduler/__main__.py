import sys

from arl_kit.app import VERSION
from arl_kit.http_server.server import serve
from arl_kit.settings import load_settings
from arl_kit.telemetry.otel import OtelSettings, TracePipeline, open_pipeline
from arl_scheduler.app import build
from arl_scheduler.settings import SchedulerSettings


def _pipeline() -> TracePipeline | None:
    """Open the pipeline of spans.

    Invalid settings are printed and do not stop the process: the variables may be meant for another program.
    """
    otel = load_settings(OtelSettings, fallback=OtelSettings.model_construct(disabled=True))
    try:
        return open_pipeline(otel, service="scheduler", version=VERSION)
    except ValueError as error:
        print(f"{error}; spans are not exported", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return None


if __name__ == "__main__":
    settings = load_settings(SchedulerSettings)
    serve(build(settings, _pipeline()), settings, name="scheduler")
