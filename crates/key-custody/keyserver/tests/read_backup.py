#!/usr/bin/python3
"""Reads a backup as docs/KEYS.md describes it, with nothing of Strongroom: the file, then opened shares, one a file.

Prints one JSON line a record: [kind, key, value], bytes in hexadecimal.
"""

import hashlib
import json
import struct
import sys

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def multiply(a, b):
    """GF(2^8) with x^8+x^4+x^3+x+1."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def inverse(a):
    return next(b for b in range(1, 256) if multiply(a, b) == 1)


def combine(points):
    """Lagrange's interpolation at x = 0, byte by byte."""
    key = bytearray(32)
    for x, value in points:
        weight = 1
        for other, _ in points:
            if other != x:
                weight = multiply(weight, multiply(other, inverse(other ^ x)))
        for at, byte in enumerate(value):
            key[at] ^= multiply(weight, byte)
    return bytes(key)


def read_share(path, backup):
    line = open(path).read().strip()
    checked, checksum = line.rsplit(":", 1)
    assert hashlib.sha256(checked.encode()).hexdigest()[:16] == checksum
    start, share_of, index, _threshold, _total, value = checked.split(":")
    assert start == "strongroom-share-1" and share_of == backup.replace("-", "")
    return int(index), bytes.fromhex(value)


def main():
    backup, *shares = sys.argv[1:]
    with open(backup, "rb") as file:
        line = file.readline()
        body = file.read()
    header = json.loads(line)
    salt = bytes.fromhex(header["id"].replace("-", ""))
    derive = lambda info, length: HKDF(SHA256(), length, salt, info).derive(key)
    key = combine([read_share(share, header["id"]) for share in shares])
    assert derive(b"strongroom backup v1 key check", 16).hex() == header["key_check"]
    cipher = AESGCM(derive(b"strongroom backup v1 archive", 32))

    plain, number, last = b"", 0, False
    while not last:
        (length,) = struct.unpack(">I", body[:4])
        last, count = bool(length >> 31), (length & 0x7FFFFFFF) + 16
        nonce = struct.pack(">QI", number, last)
        associated = hashlib.sha256(line).digest() + nonce + body[:4]
        plain += cipher.decrypt(nonce, body[4 : 4 + count], associated)
        body, number = body[4 + count :], number + 1
    assert not body

    at = 0
    while True:
        kind, key_length, value_length = struct.unpack(">BHI", plain[at : at + 7])
        start, end = at + 7 + key_length, at + 7 + key_length + value_length
        key_bytes, value = plain[at + 7 : start], plain[start:end]
        if kind == 255:
            manifest = json.loads(value)
            assert manifest["sha256"] == hashlib.sha256(plain[:at]).hexdigest() and end == len(plain)
            return
        print(json.dumps([kind, key_bytes.hex(), value.hex()]))
        at = end


main()
