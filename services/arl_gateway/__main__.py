from arl_gateway.settings import GatewaySettings
from arl_kit.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(GatewaySettings)
    # A settings check ends above. These imports would take most of its time.
    from arl_gateway.app import build
    from arl_gateway.deps import gateway_deps
    from arl_kit.http_server.server import serve

    app = build(settings)
    serve(app, settings, name="gateway", on_drain=gateway_deps(app).drain)
