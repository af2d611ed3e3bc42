#!/usr/bin/python3
"""Looks for what old data keys of a volume still open.

    find-marker.py OLD-DESCRIPTOR --key-file FILE --marker TEXT [--old-tags FILE ...] -- DIRECTORY ...

OLD-DESCRIPTOR is a copy of a descriptor from before a re-encryption, which opens with the key in FILE; of a clear volume
there are no keys, and the marker is looked for as it is. Every block of every file in the directories is decrypted with
every data key of the copy, by OpenSSL alone. It says where the marker is found, and ends with 1 if it is. Whether a file
belongs to the volume does not matter. Of copies of the volume's files with tags (`tags-...`, `tags2-...`, `discards-...`)
from before, no tag may be anywhere either: an old tag would show whether an old block is guessed rightly.
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


def tags_of(path):
    """Every tag of a copy of a file with tags: those of blocks, and those of sectors with marks."""
    content = path.read_bytes()
    # A file of tags begins with a page of its own; a record of discards has sectors alone.
    sectors_at, blocks_at = {"tags2": (4096, 16 << 20), "tags": (4096, 1 << 20)}.get(
        path.name.partition("-")[0], (0, len(content))
    )
    blocks = (content[at : at + 16] for at in range(blocks_at, len(content), 16))
    sectors = (content[at : at + 16] for at in range(sectors_at, min(blocks_at, len(content)), 512))
    # Nothing is no tag.
    return {tag for found in (blocks, sectors) for tag in found if len(set(tag)) > 4}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("descriptor", type=Path)
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--marker", required=True)
    parser.add_argument("--old-tags", nargs="*", type=Path, default=[])
    parser.add_argument("directories", nargs="+", type=Path)
    arguments = parser.parse_args()

    marker = arguments.marker.encode()
    keys = data_keys(arguments.descriptor, arguments.key_file)
    files = [path for directory in arguments.directories for path in sorted(directory.rglob("*")) if path.is_file()]
    tags = set().union(*map(tags_of, arguments.old_tags))
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
            if tags and not tags.isdisjoint(block[at : at + 16] for at in range(0, BLOCK_BYTES, 16)):
                found += 1
                print(f"{path}: block {number} has an old tag")
    told = f"{examined} blocks of {len(files)} files under {len(keys)} old keys and {len(tags)} old tags: {found} show the marker"
    sys.exit(told) if found else print(told)


if __name__ == "__main__":
    main()
