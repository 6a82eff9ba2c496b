from arl_admission.settings import AdmissionSettings
from arl_kit.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(AdmissionSettings)
    # Imports take most of the time of a check, which ends before them.
    from arl_admission.app import build
    from arl_kit.http_server.server import serve

    serve(build(settings), settings, name="admission")
