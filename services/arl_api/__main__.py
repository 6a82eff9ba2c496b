from arl_api.app import build
from arl_api.settings import ApiSettings
from arl_kit.server import serve
from arl_kit.settings import load

if __name__ == "__main__":
    settings = load(ApiSettings)
    serve(build(settings), settings, name="api")
