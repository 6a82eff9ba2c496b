from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings
from arl_kit.app import serve
from arl_kit.settings import load

if __name__ == "__main__":
    settings = load(GatewaySettings)
    serve(build(settings), settings, name="gateway")
