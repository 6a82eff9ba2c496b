from arl_cpu.settings import CpuSettings
from arl_kit.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(CpuSettings)
    # Imports take most of the time of a check, which ends before them.
    from arl_cpu.app import build
    from arl_cpu.deps import cpu_deps
    from arl_kit.http_server.server import serve

    app = build(settings)
    serve(app, settings, name="cpu", on_drain=cpu_deps(app).drain)
