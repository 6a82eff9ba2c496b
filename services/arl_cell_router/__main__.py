from arl_cell_router.settings import CellRouterSettings
from arl_kit.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(CellRouterSettings)
    # A settings check ends above. These imports would take most of its time.
    from arl_cell_router.app import build
    from arl_kit.http_server.server import serve

    serve(build(settings), settings, name="cell-router")
