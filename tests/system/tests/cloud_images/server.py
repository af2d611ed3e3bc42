"""A server of images that is sometimes slow, wrong or gone. Prints its address when it listens.

Usage: server.py CERTIFICATE KEY IMAGE
"""

import http.server
import ssl
import sys

CERTIFICATE, KEY, IMAGE = sys.argv[1:]
CONTENT = open(IMAGE, "rb").read()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, self.headers.get("range", "-"), flush=True)
        match self.path.split("?")[0]:
            case "/image":
                self.give(CONTENT)
            case "/other":
                self.give(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
            case "/moved":
                self.moved(f"https://localhost:{self.server.server_port}/image")
            case "/downgraded":
                self.moved(f"http://localhost:{self.server.server_port}/image")
            case "/circle":
                self.moved(f"https://localhost:{self.server.server_port}/circle")
            case "/breaks":
                # Whole only if it is asked for the rest.
                if "range" in self.headers:
                    self.give(CONTENT)
                else:
                    self.head(200, len(CONTENT))
                    self.wfile.write(CONTENT[: len(CONTENT) // 2])
                    self.close_connection = True
            case "/huge":
                self.head(200, 1 << 60)
            case "/endless":
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                try:
                    while True:
                        self.wfile.write(bytes(1 << 20))
                except OSError:
                    pass
            case _:
                self.send_error(404)

    def head(self, status, length):
        self.send_response(status)
        self.send_header("content-length", str(length))
        self.end_headers()

    def moved(self, place):
        self.send_response(302)
        self.send_header("location", place)
        self.send_header("content-length", "0")
        self.end_headers()

    def give(self, content):
        wanted = self.headers.get("range")
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.head(206 if wanted else 200, len(content) - first)
        self.wfile.write(content[first:])

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(f"https://localhost:{server.server_port}", flush=True)
server.serve_forever()
