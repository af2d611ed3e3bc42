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


def begin_upload(vm, named_by):
    """A client for a disk of `vm`, and the task of an import for a disk of `named_by` that names it."""
    given = ticket(vm, operation="upload", disk="disk0")
    stream, _, answer = present(given["address"], given["ticket"])
    assert answer == "upload", answer
    wish = {"ticket": given["ticket"], "format": "raw"}
    return stream, api("POST", f"/v1/vms/{named_by}/disks/disk0/import", wish)


def upload(attack, content, vm="web2", named_by="web2"):
    """Sends `content`, the offer of an image and the answer to the first question."""
    stream, task = begin_upload(vm, named_by)
    try:
        stream.sendall(content)
        while stream.recv(4096):
            pass
    except OSError:
        pass
    stream.close()
    tell(attack, outcome(task))


def offer(size):
    return b"SRIMAGE1" + struct.pack("<Q", size)


def awaits(task):
    while not task.get("awaits_image"):
        assert task["state"] == "running", task
        task = api("GET", f"/v1/tasks/{task['id']}?wait_s=1")


def come_back(image):
    """Comes with another ticket and answers once: with the first bytes of `image`."""
    given = ticket("web2", operation="upload", disk="disk0")
    stream, _, _ = present(given["address"], given["ticket"])
    stream.sendall(offer(len(image)))
    said = stream.recv(1)
    if said == b"R":
        at, length = struct.unpack("<QI", stream.recv(12))
        stream.sendall(b"D" + image[at : at + length])
        said = stream.recv(1)
    stream.recv(4)
    return stream.recv(4096).decode() if said == b"X" else said


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

upload("an image for another VM", offer(16 * MIB), named_by="web3")
upload("an image that is larger than the disk", offer(17 * MIB))
upload("an image larger than any disk", offer(1 << 63))
upload("an answer that is none", offer(16 * MIB) + b"Q")
upload("a client that cannot go on", offer(16 * MIB) + b"X" + struct.pack("<I", 3) + b"why")
upload("a reason without end", offer(16 * MIB) + b"X" + struct.pack("<I", 1 << 31))
upload("no image", b"\0" * 100)
stream, task = begin_upload("web2", "web2")
stream.sendall(offer(16 * MIB) + b"D" + b"\1" * MIB)
stream.recv(1)
stream.close()
awaits(task)
tell("a longer image after a loss", come_back(b"\1" * (16 * MIB + 512)))
tell("another image after a loss", come_back(b"\2" * 16 * MIB))
api("DELETE", f"/v1/tasks/{task['id']}")
tell("a task that nobody brings its image", outcome(task))

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
