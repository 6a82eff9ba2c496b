from arl_kit.otlp import OtlpSettings
from arl_kit.server import serve
from arl_kit.settings import load
from arl_scheduler.app import build
from arl_scheduler.settings import SchedulerSettings

if __name__ == "__main__":
    settings = load(SchedulerSettings)
    serve(build(settings, load(OtlpSettings)), settings, name="scheduler")
