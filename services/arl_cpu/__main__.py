from arl_cpu.settings import CpuSettings
from arl_kit.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(CpuSettings)
    # A settings check ends above. These imports would take most of its time.
    from arl_cpu.app import build
    from arl_cpu.deps import cpu_deps
    from arl_kit.http_server.server import serve

    app = build(settings)
    serve(app, settings, name="cpu", on_drain=cpu_deps(app).drain)
