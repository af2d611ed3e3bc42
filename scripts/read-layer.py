#!/usr/bin/python3
"""Reads a cleanly closed volume without any program of Strongroom's.

    read-layer.py VOLUME (--key-file FILE | --passphrase-fd N | --unencrypted) [--snapshot NAME] > plain.img

With --unencrypted the volume must be clear, all of it. Of a volume with tags every block is compared with its own, and one that does not fit ends it with an error.

It follows docs/ON_DISK.md with standard libraries alone (OpenSSL through python3-cryptography; Argon2's reference
implementation through python3-argon2): the way back to the data if this project were gone, and the proof that the
format is what the page says. What it writes is the guest's plain data: mind where it goes.
"""

import argparse
import json
import os
import struct
import sys
import uuid

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

BLOCK_BYTES = 4096
SECTOR_BYTES = 512


def hkdf(key, info, length):
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(key)


def read_descriptor(volume):
    with open(os.path.join(volume, "descriptor"), "rb") as file:
        content = file.read()
    magic, version, length = struct.unpack_from("<8sII", content)
    if magic != b"STRGROOM" or version not in range(1, 10) or len(content) not in (16 + length + 32, 16 + length + 64):
        sys.exit(f"{volume}: not a descriptor of format version 1 to 9")
    # During a re-encryption `kek` may open only some of the layers, which `Layer` notices.
    # The first tag is under `kek`, which opens the volume even while a re-wrap adds another KEK.
    return json.loads(content[16 : 16 + length]), content[: 16 + length], content[16 + length : 16 + length + 32]


def derive_kek(source, arguments):
    # The caller fetches a key provider's key and passes it in a file too.
    if source["kind"] in ("key-file", "provider"):
        with open(arguments.key_file, "rb") as file:
            key = file.read()
        return key if len(key) == 32 else bytes.fromhex(key.decode().strip())
    from argon2.low_level import Type, hash_secret_raw

    with os.fdopen(arguments.passphrase_fd, "rb") as file:
        passphrase = file.read().removesuffix(b"\n")
    return hash_secret_raw(
        passphrase,
        bytes.fromhex(source["salt"]),
        time_cost=source["passes"],
        memory_cost=source["memory_kib"],
        parallelism=source["lanes"],
        hash_len=32,
        type=Type.ID,
    )


def descriptor_key(kek, descriptor):
    return hkdf(kek, b"strongroom descriptor mac v1" + uuid.UUID(descriptor["volume"]).bytes, 32)


def expect_empty_log(path):
    """Refuses a log that may hold blocks which the layer has not: only an orderly end completes the layer."""
    with open(path, "rb") as file:
        slots = [file.read(4096) for _ in range(2)]
    found = [struct.unpack_from("<QQQ", slot, 40) for slot in slots if slot[:8] == b"STRLOG01"]
    if not found or max(found)[2] == 0:
        sys.exit(f"{path}: was not closed in order; let strongroom open and close the volume first")


def open_envelope(envelope, descriptor, layer, epoch, kek, kek_id):
    associated = b"strongroom envelope v1\0" + struct.pack(
        "<B16s16sIHI16s",
        1,
        uuid.UUID(descriptor["volume"]).bytes,
        uuid.UUID(layer["id"]).bytes,
        epoch["epoch"],
        1,
        BLOCK_BYTES,
        kek_id,
    )
    return AESGCM(kek).decrypt(bytes.fromhex(envelope["nonce"]), bytes.fromhex(envelope["sealed"]), associated)


def maker_of(descriptor, record):
    """The volume that made a layer: the tags of a linked clone's are bound to its origin."""
    return uuid.UUID(record.get("volume") or descriptor["volume"]).bytes


def chain_of(descriptor, uppermost):
    """A layer and those below it, nearest first."""
    records = {record["id"]: record for record in descriptor["layers"]}
    chain = [records[uppermost]]
    while chain[-1]["parent"]:
        chain.append(records[chain[-1]["parent"]])
    return chain


def uppermost_layer(descriptor, snapshot):
    """The layer that a snapshot's content ends with, or the volume's."""
    if snapshot is None:
        return descriptor["top"]
    found = [record["layer"] for record in descriptor.get("snapshots", []) if record["name"] == snapshot]
    return found[0] if found else sys.exit(f"there is no snapshot {snapshot}")


def read_block(layers, number):
    """What the nearest layer says that has the block, or hides what is below."""
    for layer in layers:
        block = layer.read_block(number)
        if block is not None:
            return block
        if number in layer.discards:
            break
    return bytes(BLOCK_BYTES)


class Layer:
    def __init__(self, volume, descriptor, record, kek, kek_id):
        if record.get("log"):
            expect_empty_log(os.path.join(volume, f"log-{record['id']}"))
        self.volume, self.record = volume, record
        self.dek = self.open_dek(descriptor, kek, kek_id) if kek else self.expect_clear()
        self.blocks = -(-(record.get("size_bytes") or descriptor["size_bytes"]) // BLOCK_BYTES)
        self.file = open(os.path.join(volume, f"layer-{record['id']}"), "rb")
        self.discards = set()
        self.tags = None

    def open_dek(self, descriptor, kek, kek_id):
        (epoch,) = self.record["epochs"]
        assert epoch["cipher"] == "aes-256-xts-plain64-4096"
        (envelope,) = [found for found in epoch["envelopes"] if uuid.UUID(found["kek"]).bytes == kek_id]
        return open_envelope(envelope, descriptor, self.record, epoch, kek, kek_id)

    def expect_clear(self):
        if self.record["epochs"] or self.record.get("integrity"):
            sys.exit(f"layer {self.record['id']} is sealed, and the volume says that it is clear")

    def read_block(self, number):
        """The plain block, or None where the layer has nothing."""
        if number >= self.blocks:
            return None
        self.file.seek(number * BLOCK_BYTES)
        block = self.file.read(BLOCK_BYTES)
        if self.tags:
            self.tags.expect(number, block)
        if not any(block):
            return None
        if self.dek is None:
            return block
        decryptor = Cipher(algorithms.AES(self.dek), modes.XTS(number.to_bytes(16, "little"))).decryptor()
        return decryptor.update(block) + decryptor.finalize()

    def read_discards(self, descriptor, deks):
        """Takes in which blocks hide what is below; a sector that no key of the volume vouches for is refused."""
        if not self.record["parent"]:
            return
        # Of a clear volume everyone knows the key: its tags show accidents alone.
        keys = [bytes(32) if dek is None else hkdf(dek, b"strongroom discards key v1", 32) for dek in deks]
        taggers = [HmacSha256(key) for key in keys]
        path = os.path.join(self.volume, f"discards-{self.record['id']}")
        with open(path, "rb") as file:
            sectors = iter(lambda: file.read(SECTOR_BYTES), b"")
            for number, sector in enumerate(sectors):
                tag, bits = sector[:16], sector[16:]
                if not any(sector):
                    continue
                header = struct.pack(
                    "<16s16s16sIIQ",
                    b"strongroom clear",
                    maker_of(descriptor, self.record),
                    uuid.UUID(self.record["id"]).bytes,
                    0,
                    0,
                    number,
                )
                if tag not in [tagger.tag(header, bits) for tagger in taggers]:
                    sys.exit(f"{path}: sector {number} was damaged or changed")
                first = number * len(bits) * 8
                self.discards.update(first + n for n in range(len(bits) * 8) if bits[n // 8] >> n % 8 & 1)


class Tags:
    """Says of each block of a layer whether it is the one that was last written there."""

    # The tags of one page, which cover 1 MiB of the layer.
    PAGE_TAGS = BLOCK_BYTES // 16
    SECTOR_BITS = (SECTOR_BYTES - 16) * 8

    def __init__(self, volume, descriptor, layer, deks):
        (epoch,) = layer.record["epochs"]
        ids = maker_of(descriptor, layer.record) + uuid.UUID(layer.record["id"]).bytes
        self.header = lambda purpose, epoch, place: struct.pack("<16s32sIIQ", purpose, ids, epoch, 0, place)
        self.epoch = epoch["epoch"]
        by_polyval = layer.record["integrity"] == "polyval-aes-256-absence"
        tagger_of = polyval_aes_of if by_polyval else hmac_of
        self.tagger = tagger_of(layer.dek)
        self.taggers = [tagger_of(dek) for dek in deks]
        vouches_for_absence = by_polyval or layer.record["integrity"] == "hmac-sha256-128-absence"
        name = ("tags2-" if vouches_for_absence else "tags-") + layer.record["id"]
        self.path = os.path.join(volume, name)
        self.file = open(self.path, "rb")
        self.first = (16 if vouches_for_absence else 1) << 20
        for number, bits in self.sectors(b"strongroom marks", 4096, 1 << 20):
            if bits and any(bits):
                sys.exit(f"{self.path}: was not closed in order; let strongroom open and close the volume first")
        self.pages = self.read_presence(layer.blocks) if vouches_for_absence else None

    def sectors(self, purpose, start, end):
        """The bits of each sector, or None for one that no key of the volume vouches for."""
        self.file.seek(start)
        for number in range((end - start) // SECTOR_BYTES):
            sector = self.file.read(SECTOR_BYTES)
            tag, bits = sector[:16], sector[16:]
            if not any(sector):
                yield number, None
                continue
            vouched_for = tag in [tagger.tag(self.header(purpose, 0, number), bits) for tagger in self.taggers]
            yield number, bits if vouched_for else None

    def read_presence(self, blocks):
        """Which pages of tags are there; all of those of which a sector that is damaged or gone speaks."""
        sectors = -(-(-(-blocks // self.PAGE_TAGS)) // self.SECTOR_BITS)
        pages = set()
        for number, bits in self.sectors(b"strongroom there", 1 << 20, (1 << 20) + sectors * SECTOR_BYTES):
            first = number * self.SECTOR_BITS
            pages.update(
                first + n for n in range(self.SECTOR_BITS) if bits is None or bits[n // 8] >> n % 8 & 1
            )
        return pages

    def expect(self, number, block):
        """Refuses a block that is not what its tag says."""
        self.file.seek(self.first + 16 * number)
        found = self.file.read(16)
        if any(block):
            should = self.tagger.tag(self.header(b"strongroom block", self.epoch, number), block)
        elif self.pages is None:
            should = bytes(16)
        else:
            should = self.tagger.tag(self.header(b"strongroom empty", self.epoch, number), b"")
        if self.pages is not None and number // self.PAGE_TAGS not in self.pages:
            fits = not any(block)
        else:
            fits = found == should
        if not fits:
            sys.exit(f"{self.path}: block {number} is damaged, or was put back to an earlier content")


class HmacSha256:
    """Tags by HMAC-SHA256, truncated."""

    def __init__(self, key):
        self.key = key

    def tag(self, header, message):
        tagger = hmac.HMAC(self.key, hashes.SHA256())
        tagger.update(header + message)
        return of_something(tagger.finalize()[:16])


class PolyvalAes:
    """Tags by AES-256 of POLYVAL (RFC 8452, 3): elements of GF(2^128) are numbers whose bit n is the term x^n."""

    # x^127 + x^126 + x^121 + 1, which is x^128 in the field.
    POLYNOMIAL = 1 << 127 | 1 << 126 | 1 << 121 | 1

    def __init__(self, key):
        self.cipher = Cipher(algorithms.AES(key[16:]), modes.ECB())
        # The product with the key, divided by x^128, of each value of each byte.
        term = int.from_bytes(key[:16], "little")
        for _ in range(128):
            term = (term >> 1) ^ (term & 1) * (1 << 127 | self.POLYNOMIAL >> 1)
        self.products = []
        for _ in range(16):
            table = [0]
            for _ in range(8):
                table += [term ^ product for product in table]
                term = (term << 1) % (1 << 128) ^ (term >> 127) * self.POLYNOMIAL
            self.products.append(table)

    def tag(self, header, message):
        filled = [part + bytes(-len(part) % 16) for part in (header, message)]
        content = struct.pack("<QQ", len(header), len(message)) + b"".join(filled)
        total = 0
        for at in range(0, len(content), 16):
            total ^= int.from_bytes(content[at : at + 16], "little")
            each = zip(self.products, total.to_bytes(16, "little"), strict=True)
            total = 0
            for table, byte in each:
                total ^= table[byte]
        encryptor = self.cipher.encryptor()
        return of_something(encryptor.update(total.to_bytes(16, "little")) + encryptor.finalize())


def hmac_of(dek):
    return HmacSha256(hkdf(dek, b"strongroom block tag key v1", 32))


def polyval_aes_of(dek):
    return PolyvalAes(hkdf(dek, b"strongroom polyval tag key v1", 48))


def of_something(tag):
    return tag if any(tag) else (1).to_bytes(16, "little")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("volume")
    parser.add_argument("--key-file")
    parser.add_argument("--passphrase-fd", type=int)
    parser.add_argument("--unencrypted", action="store_true")
    parser.add_argument("--snapshot", help="read what the volume held at this snapshot")
    arguments = parser.parse_args()

    descriptor, signed, tag = read_descriptor(arguments.volume)
    if (descriptor["encryption"] is None) != arguments.unencrypted:
        sys.exit(f"{arguments.volume}: is {'clear' if descriptor['encryption'] is None else 'encrypted'}")
    if arguments.unencrypted:
        kek = kek_id = None
        digest = hashes.Hash(hashes.SHA256())
        digest.update(signed)
        if digest.finalize() != tag:
            sys.exit(f"{arguments.volume}: its descriptor is damaged")
    else:
        kek = derive_kek(descriptor["encryption"]["kek"]["source"], arguments)
        kek_id = hkdf(kek, b"strongroom kek id v1", 16)
        if kek_id != uuid.UUID(descriptor["encryption"]["kek"]["id"]).bytes:
            sys.exit(f"{arguments.volume}: this is not its key")
        verifier = hmac.HMAC(descriptor_key(kek, descriptor), hashes.SHA256())
        verifier.update(signed)
        verifier.verify(tag)

    uppermost = uppermost_layer(descriptor, arguments.snapshot)
    chain = chain_of(descriptor, uppermost)
    layers = [Layer(arguments.volume, descriptor, record, kek, kek_id) for record in chain]
    for layer in layers:
        deks = [layer.dek for layer in layers]
        layer.read_discards(descriptor, deks)
        if layer.record.get("integrity"):
            layer.tags = Tags(arguments.volume, descriptor, layer, deks)
    left = chain[0].get("size_bytes") or descriptor["size_bytes"]
    for number in range(-(-left // BLOCK_BYTES)):
        block = read_block(layers, number)[:left]
        sys.stdout.buffer.write(block)
        left -= len(block)


if __name__ == "__main__":
    main()
