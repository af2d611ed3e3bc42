"""A client with tickets that does what no client of ours does. Prints an attack and its outcome a line.

Usage: attacks.py API-ADDRESS CA TOKEN-FILE
"""

import hashlib
import json
import socket
import ssl
import struct
import sys
import time
import urllib.request

API, CA, TOKEN_FILE = sys.argv[1:]
TOKEN = open(TOKEN_FILE).read().strip()
MIB = 1 << 20
PROTOCOL = "strongroom-guest/1"

trust = ssl.create_default_context(cafile=CA)
trust.check_hostname = False


def api(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://{API}{path}", data, method=method)
    request.add_header("authorization", f"Bearer {TOKEN}")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, context=trust, timeout=60) as answer:
        return json.load(answer)


def ticket(vm, **use):
    return api("POST", f"/v1/vms/{vm}/tickets", use)


def connect(address, protocol=PROTOCOL):
    """A connection to the port of a host, whoever it is, and the digest of its certificate."""
    host, port = address.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocol:
        context.set_alpn_protocols([protocol])
    stream = context.wrap_socket(socket.create_connection((host, int(port)), timeout=60))
    return stream, hashlib.sha256(stream.getpeercert(binary_form=True)).hexdigest()


def line(stream):
    got = b""
    while not got.endswith(b"\n"):
        byte = stream.recv(1)
        if not byte:
            break
        got += byte
    return json.loads(got) if got else {}


def present(address, secret):
    stream, digest = connect(address)
    stream.sendall(json.dumps({"format": 1, "ticket": secret}).encode() + b"\n")
    return stream, digest, line(stream)


def code(answer):
    return answer["error"]["code"] if "error" in answer else "taken"


def tell(attack, outcome):
    print(f"{attack}: {outcome}", flush=True)


def outcome(task):
    while task["state"] not in ("done", "failed", "cancelled"):
        task = api("GET", f"/v1/tasks/{task['id']}?wait_s=5")
    return task["error"]["message"] if task.get("error") else task["state"]


def upload(attack, content, vm="web2", named_by="web2"):
    """Sends `content` for a disk of `vm`, and has an import for a disk of `named_by` use it."""
    given = ticket(vm, operation="upload", disk="disk0")
    stream, _, answer = present(given["address"], given["ticket"])
    assert answer == "upload", answer
    task = api("POST", f"/v1/vms/{named_by}/disks/disk0/import", {"ticket": given["ticket"], "format": "raw"})
    try:
        stream.sendall(content)
        stream.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    stream.close()
    tell(attack, outcome(task))


def head(size):
    return b"SRDISK01" + struct.pack("<Q", size)


def frame(offset, data):
    return b"D" + struct.pack("<QI", offset, len(data)) + data


log = ticket("web2", operation="console_log")
_, digest, answer = present(log["address"], log["ticket"])
tell("the certificate is that of the ticket", digest == log["certificate_sha256"])
tell("a ticket", "console_log" if answer == "console_log" else answer)
tell("a ticket used twice", code(present(log["address"], log["ticket"])[2]))
elsewhere = ticket("web0", operation="console_log")["address"]
log = ticket("web2", operation="console_log")
tell("a ticket at another host", code(present(elsewhere, log["ticket"])[2]))
tell("a ticket that never was", code(present(log["address"], "0" * 32)[2]))
stream, _ = connect(log["address"])
stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
tell("no ticket", code(line(stream)))

try:
    stream, _ = connect(log["address"], protocol=None)
    stream.sendall(b"GET /v1/host HTTP/1.1\r\nhost: x\r\n\r\n")
    tell("no certificate and no protocol", stream.recv(1) or "closed")
except OSError:
    tell("no certificate and no protocol", "closed")

whole = head(16 * MIB) + frame(0, b"\1" * MIB)
upload("an image for another VM", whole, named_by="web3")
upload("an image that is larger than the disk", head(17 * MIB))
upload("data beyond the end", head(16 * MIB) + frame(16 * MIB, b"\1" * 512))
upload("more data than the disk", head(16 * MIB) + frame(0, b"\1" * MIB) * 17)
upload("an image that breaks off", whole)
upload("an image that is not what was sent", whole + b"E" + struct.pack("<Q", MIB) + bytes(32))
upload("no image", b"\0" * 100)

# Strangers who say nothing: they end, and keep nobody out meanwhile.
silent = [connect(log["address"])[0] for _ in range(100)]
log = ticket("web2", operation="console_log")
tell("a ticket among silent strangers", present(log["address"], log["ticket"])[2])
began = time.monotonic()
for stream in silent:
    stream.settimeout(30)
    try:
        while stream.recv(4096):
            pass
    except OSError as error:
        assert not isinstance(error, TimeoutError), "a silent stranger stays"
tell("silent strangers", "gone" if time.monotonic() - began < 30 else "stay")
