#!/usr/bin/env python3
"""A browser's console, by Python's standard library alone: signs in with a token, asks for a ticket, and opens a
WebSocket (RFC 6455) to the guest. Types a line, waits for an answer in what the guest says, prints one line of JSON, and
stays until the connection ends.

usage: console.py URL CERTIFICATE TOKEN_FILE VM LINE ANSWER
"""
import base64
import http.client
import json
import os
import socket
import ssl
import struct
import sys
from urllib.parse import urlsplit

WITHIN_S = 60


def main(url, certificate, token_file, vm, line, answer):
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    context = ssl.create_default_context(cafile=certificate)
    headers = {
        "Origin": origin,
        "Sec-Fetch-Site": "same-origin",
        "Strongroom-Page": "1",
        "Content-Type": "application/json",
    }

    def post(path, body):
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, context=context, timeout=WITHIN_S)
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        content = json.loads(response.read())
        if response.status != 201:
            sys.exit(f"{path}: {response.status} {content}")
        return response, content

    with open(token_file, encoding="ascii") as file:
        response, _ = post("/v1/page-sessions", {"by": "token", "token": file.read().strip()})
    headers["Cookie"] = response.getheader("Set-Cookie").split(";")[0]
    _, ticket = post(f"/v1/vms/{vm}/tickets", {"operation": "console"})

    connected = socket.create_connection((parts.hostname, parts.port), timeout=WITHIN_S)
    stream = context.wrap_socket(connected, server_hostname=parts.hostname)
    stream.settimeout(None)
    asked = {
        "Host": parts.netloc,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": f"strongroom-guest, strongroom-ticket.{ticket['ticket']}",
        "Origin": origin,
        "Sec-Fetch-Site": "same-origin",
        "Cookie": headers["Cookie"],
    }
    head = "GET /relay HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in asked.items()) + "\r\n"
    stream.sendall(head.encode())
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        said += read(stream, 1)
    status = said.split(b"\r\n")[0].decode()
    if " 101 " not in status:
        sys.exit(status)
    welcome = json.loads(frame(stream)[1])
    send(stream, line.encode() + b"\n")
    heard = b""
    while answer.encode() not in heard:
        heard += frame(stream)[1]
    print(json.dumps({"cipher": stream.cipher()[0], "welcome": welcome}), flush=True)
    try:
        while True:
            frame(stream)
    except EOFError:
        print("ended", flush=True)


def read(stream, count):
    content = b""
    while len(content) < count:
        try:
            piece = stream.recv(count - len(content))
        except (ConnectionResetError, ssl.SSLEOFError):
            piece = b""
        if not piece:
            raise EOFError("the connection has ended")
        content += piece
    return content


def frame(stream):
    first, length = read(stream, 2)
    if length == 126:
        (length,) = struct.unpack(">H", read(stream, 2))
    elif length == 127:
        (length,) = struct.unpack(">Q", read(stream, 8))
    return first & 15, read(stream, length)


def send(stream, content):
    """Sends a binary message of at most 125 bytes."""
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(content))
    stream.sendall(bytes([0x82, 0x80 | len(content)]) + mask + masked)


main(*sys.argv[1:])
