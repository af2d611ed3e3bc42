"""PyKMIP's server over mutual TLS, in one process, on a port of the kernel's choice: the first peer of our client.

    server.py --directory DIR --ca ca.pem --cert server.pem --key server.key [--port PORT]

DIR holds its database and log; a killed server that is started over the same one finds its objects again. Says
"listening on ADDRESS" on stdout when it serves. The certificate must have an ECDSA key: beside those, PyKMIP offers
TLS 1.2 cipher suites in CBC mode only, which rustls does not speak.
"""

import argparse
import os
import sys
import threading
import warnings

warnings.simplefilter("ignore")  # deprecations in PyKMIP's own code; nobody here acts on them

from kmip.services.server import server as kmip_server  # noqa: E402


class OneProcess:
    """In place of PyKMIP's policy files: a process of their own and a third to share them with would outlive a kill."""

    def __init__(self, *_arguments):
        pass

    def dict(self):
        return {}

    def start(self):
        pass

    def stop(self):
        pass

    def join(self):
        pass


class Server(kmip_server.KmipServer):
    def serve(self):
        self._socket.listen(5)
        print("listening on %s:%d" % self._socket.getsockname(), flush=True)
        super().serve()


def end_with_stdin():
    sys.stdin.buffer.read()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--directory", "--ca", "--cert", "--key"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--with-parent", action="store_true",
                        help="end when stdin closes, as it does when whoever started this ends")
    arguments = parser.parse_args()
    if arguments.with_parent:
        threading.Thread(target=end_with_stdin, daemon=True).start()

    kmip_server.multiprocessing.Manager = OneProcess
    kmip_server.monitor.PolicyDirectoryMonitor = OneProcess
    os.makedirs(arguments.directory, mode=0o700, exist_ok=True)
    server = Server(
        hostname="127.0.0.1",
        certificate_path=os.path.abspath(arguments.cert),
        key_path=os.path.abspath(arguments.key),
        ca_path=os.path.abspath(arguments.ca),
        auth_suite="TLS1.2",
        config_path=None,
        log_path=os.path.join(arguments.directory, "server.log"),
        policy_path=None,
        enable_tls_client_auth=True,
        logging_level="INFO",
        database_path=os.path.join(arguments.directory, "objects.sqlite"),
    )
    # PyKMIP's own check refuses port 0, with which the kernel chooses a port.
    server.config.settings["port"] = arguments.port
    server.start()
    server.serve()
    os._exit(0)  # its sessions are threads that wait for their clients


if __name__ == "__main__":
    main()
