from arl_kit.otlp import OtlpSettings
from arl_kit.server import serve
from arl_kit.settings import load
from arl_scheduler.app import build
from arl_scheduler.settings import SchedulerSettings

if __name__ == "__main__":
    settings = load(SchedulerSettings)
    # What a shell says of traces for another program must not keep this one from running.
    otlp = load(OtlpSettings, otherwise=OtlpSettings.model_construct(disabled=True))
    serve(build(settings, otlp), settings, name="scheduler")
