"""A dummy service or launcher: answers every GET with 200 on the address from its environment.

Needs nothing but the standard library and starts fast.
"""

import http.server
import os
import signal
import socketserver
import sys


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = repr(sorted(os.environ)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "TANGRAM_PORT" in os.environ:
        http.server.HTTPServer((os.environ["TANGRAM_HOST"], int(os.environ["TANGRAM_PORT"])), Answer).serve_forever()
    path = os.environ["TANGRAM_LAUNCHER_SOCKET"]
    if os.path.exists(path):
        os.unlink(path)
    socketserver.UnixStreamServer(path, socketserver.BaseRequestHandler).serve_forever()


if __name__ == "__main__" and "--check-settings" not in sys.argv:
    serve()
