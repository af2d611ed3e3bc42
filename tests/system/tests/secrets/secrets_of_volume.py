#!/usr/bin/python3
"""Prints every secret of a volume, one a line: its name, and its bytes in hexadecimal.

    secrets_of_volume.py VOLUME (--key-file FILE | --passphrase-fd N)

A second implementation, over scripts/read-layer.py: the KEK, the key of the descriptor's tag, the DEK, both halves of it,
and the round keys that AES-256 expands them to, which is what a cipher keeps in memory. The KEK of a key provider is given
in a file by whoever has fetched it.
"""

import argparse
import importlib.util
import pathlib
import sys
import uuid

SCRIPTS = pathlib.Path(__file__).resolve().parents[4] / "scripts"


def load_reader():
    specification = importlib.util.spec_from_file_location("read_layer", SCRIPTS / "read-layer.py")
    reader = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(reader)
    return reader


def s_box():
    """FIPS 197, 5.1.1: the inverse in GF(2^8), then an affine map."""
    box = [0x63] * 256
    p = q = 1
    while True:
        p ^= (p << 1 & 0xFF) ^ (0x1B if p & 0x80 else 0)
        q ^= q << 1
        q ^= q << 2
        q ^= q << 4
        q &= 0xFF
        if q & 0x80:
            q ^= 0x09
        rotated = [q << n | q >> 8 - n for n in range(1, 5)]
        box[p] = (q ^ rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ 0x63) & 0xFF
        if p == 1:
            return box


def round_keys(key):
    """FIPS 197, 5.2: the sixty words of AES-256."""
    box = s_box()
    words = [key[at : at + 4] for at in range(0, 32, 4)]
    constant = 1
    for index in range(8, 60):
        word = words[index - 1]
        if index % 8 == 0:
            word = bytes(box[byte] for byte in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant <<= 1
        elif index % 8 == 4:
            word = bytes(box[byte] for byte in word)
        words.append(bytes(a ^ b for a, b in zip(word, words[index - 8])))
    return b"".join(words)


def print_round_keys(name, key):
    # The first two are the key itself; each of the others would reveal it.
    expanded = round_keys(key)
    for number in range(2, 15):
        print(f"{name}-round-key-{number}", expanded[16 * number : 16 * number + 16].hex())


def main():
    # FIPS 197, A.3: the last words of its example of an expansion.
    example = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    assert round_keys(example)[-4:].hex() == "706c631e"

    reader = load_reader()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("volume")
    parser.add_argument("--key-file")
    parser.add_argument("--passphrase-fd", type=int)
    arguments = parser.parse_args()
    descriptor, _, _ = reader.read_descriptor(arguments.volume)
    kek = reader.derive_kek(descriptor["encryption"]["kek"]["source"], arguments)
    kek_id = uuid.UUID(descriptor["encryption"]["kek"]["id"]).bytes
    print("kek", kek.hex())
    print_round_keys("kek", kek)
    print("descriptor-key", reader.descriptor_key(kek, descriptor).hex())
    for layer in descriptor["layers"]:
        for epoch in layer["epochs"]:
            for envelope in epoch["envelopes"]:
                dek = reader.open_envelope(envelope, descriptor, layer, epoch, kek, kek_id)
                print("dek", dek.hex())
                for name, half in (("data", dek[:32]), ("tweak", dek[32:])):
                    print(f"dek-{name}-half", half.hex())
                    print_round_keys(name, half)


if __name__ == "__main__":
    sys.exit(main())
