from arl_gpu.app import build
from arl_gpu.settings import GpuSettings
from arl_kit.http_server.server import serve
from arl_kit.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(GpuSettings)
    serve(build(settings), settings, name="gpu")
