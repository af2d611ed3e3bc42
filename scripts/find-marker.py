#!/usr/bin/python3
"""Looks for what old data keys of a volume still open.

    find-marker.py OLD-DESCRIPTOR --key-file FILE --marker TEXT DIRECTORY ...

OLD-DESCRIPTOR is a copy of a descriptor from before a re-encryption, which opens with the key in FILE; of a clear volume
there are no keys, and the marker is looked for as it is. Every block of every file in the directories is decrypted with
every data key of the copy, by OpenSSL alone. It says where the marker is found, and ends with 1 if it is. Whether a file
belongs to the volume does not matter.
"""

import argparse
import importlib.util
import json
import struct
import sys
import uuid
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = 4096


def read_layer():
    # Nothing is left in the checkout.
    sys.dont_write_bytecode = True
    specification = importlib.util.spec_from_file_location("read_layer", Path(__file__).with_name("read-layer.py"))
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def data_keys(path, key_file):
    """Every data key that the copy of the descriptor holds under this key."""
    content = path.read_bytes()
    _, _, length = struct.unpack_from("<8sII", content)
    descriptor = json.loads(content[16 : 16 + length])
    if descriptor["encryption"] is None:
        return []
    reader = read_layer()
    key = key_file.read_bytes()
    kek = key if len(key) == 32 else bytes.fromhex(key.decode().strip())
    kek_id = reader.hkdf(kek, b"strongroom kek id v1", 16)
    keys = []
    for layer in descriptor["layers"]:
        for epoch in layer["epochs"]:
            for envelope in epoch["envelopes"]:
                if uuid.UUID(envelope["kek"]).bytes == kek_id:
                    keys.append(reader.open_envelope(envelope, descriptor, layer, epoch, kek, kek_id))
    return keys or sys.exit(f"{path}: no data key is under this key")


def blocks_of(path):
    """The blocks of a file that are not zeroes, with their numbers."""
    with open(path, "rb") as file:
        for number, block in enumerate(iter(lambda: file.read(BLOCK_BYTES), b"")):
            if len(block) == BLOCK_BYTES and any(block):
                yield number, block


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("descriptor", type=Path)
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--marker", required=True)
    parser.add_argument("directories", nargs="+", type=Path)
    arguments = parser.parse_args()

    marker = arguments.marker.encode()
    keys = data_keys(arguments.descriptor, arguments.key_file)
    files = [path for directory in arguments.directories for path in sorted(directory.rglob("*")) if path.is_file()]
    found = examined = 0
    for path in files:
        for number, block in blocks_of(path):
            examined += 1
            plain = [block]
            for key in keys:
                decryptor = Cipher(algorithms.AES(key), modes.XTS(number.to_bytes(16, "little"))).decryptor()
                plain.append(decryptor.update(block) + decryptor.finalize())
            if any(marker in content for content in plain):
                found += 1
                print(f"{path}: block {number} shows the marker")
    told = f"{examined} blocks of {len(files)} files under {len(keys)} old keys: {found} show the marker"
    sys.exit(told) if found else print(told)


if __name__ == "__main__":
    main()
