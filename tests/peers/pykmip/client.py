"""Drives a KMIP server with PyKMIP's client over mutual TLS: what another's client makes of ours.

    client.py --address HOST:PORT --ca ca.pem --cert client.pem --key client.key [--version 1.2] SCENARIO...

Scenarios: vcenter (the calls of a vCenter 7, at KMIP 1.1), life-cycle, register, throughput. Says "ok SCENARIO" for each,
or what went wrong and ends with status 1. A wrapped key is not among them: this client expects a structure where the
standard (KMIP 1.4, 2.1.4) has the wrapped bytes, and reads only its own server's.
"""

import argparse
import sys
import threading
import time
import traceback
import warnings

warnings.simplefilter("ignore")  # deprecations in PyKMIP's own code; nobody here acts on them

from kmip import enums  # noqa: E402
from kmip.core import attributes, objects, utils  # noqa: E402
from kmip.core.factories.attributes import AttributeFactory  # noqa: E402
from kmip.core.messages import contents, messages, payloads  # noqa: E402
from kmip.pie import exceptions  # noqa: E402
from kmip.pie import objects as pie_objects  # noqa: E402
from kmip.pie.client import ProxyKmipClient  # noqa: E402

CIPHER_MASK = [enums.CryptographicUsageMask.ENCRYPT, enums.CryptographicUsageMask.DECRYPT]


def require(condition, complaint):
    if not condition:
        raise AssertionError(complaint)


def vcenter(client):
    """What a vCenter Server 7 sends to a key server, in its order, at KMIP 1.1. It gives its keys no Name."""
    proxy = client.proxy
    proxy.kmip_version = enums.KMIPVersion.KMIP_1_1
    versions = proxy.discover_versions()
    require(contents.ProtocolVersion(1, 1) in versions.protocol_versions, "1.1 is not among the versions")
    information = proxy.query(query_functions=[enums.QueryFunction.QUERY_SERVER_INFORMATION])
    require(information.result_status.value == enums.ResultStatus.SUCCESS, "Query: %s" % information.result_message)

    factory = AttributeFactory()
    template = objects.TemplateAttribute(attributes=[
        factory.create_attribute(
            enums.AttributeType.CRYPTOGRAPHIC_ALGORITHM, enums.CryptographicAlgorithm.AES),
        factory.create_attribute(enums.AttributeType.CRYPTOGRAPHIC_LENGTH, 256),
        factory.create_attribute(enums.AttributeType.CRYPTOGRAPHIC_USAGE_MASK, CIPHER_MASK),
    ])
    created = proxy.create(enums.ObjectType.SYMMETRIC_KEY, template)
    require(created.result_status.value == enums.ResultStatus.SUCCESS, "Create: %s" % created.result_message)
    uid = created.uuid

    custom = {
        "x-Product_Version": "7.0.3 build-21477706",
        "x-Vendor": "VMware, Inc.",
        "x-Product": "VMware vSphere",
    }
    # PyKMIP has no AddAttribute: this assembles the batch, and parses the answers' bytes itself.
    batch = [messages.RequestBatchItem(
        operation=contents.Operation(enums.Operation.GET_ATTRIBUTES),
        unique_batch_item_id=contents.UniqueBatchItemID(b"0"),
        request_payload=payloads.GetAttributesRequestPayload(unique_identifier=uid))]
    for number, (name, value) in enumerate(custom.items(), start=1):
        batch.append(messages.RequestBatchItem(
            operation=contents.Operation(enums.Operation.ADD_ATTRIBUTE),
            unique_batch_item_id=contents.UniqueBatchItemID(str(number).encode()),
            request_payload=AddAttributeRequest(uid, name, value)))
    answers = send(proxy, batch)
    require(len(answers) == 1 + len(custom), "the batch has %d answers" % len(answers))
    require(all(status == 0 for status in answers), "an item of the batch failed: %s" % answers)

    key = client.get(uid)
    require(len(key.value) == 32, "the key has %d bytes" % len(key.value))
    require(state(client, uid) == enums.State.PRE_ACTIVE, "the key is not pre-active")
    client.activate(uid)
    require(state(client, uid) == enums.State.ACTIVE, "the key is not active")
    names = client.get_attribute_list(uid)
    require(set(custom) <= set(names), "the custom attributes are not all listed: %s" % names)


class AddAttributeRequest(objects.Struct):
    """A request payload that PyKMIP 0.11 lacks: Unique Identifier, Attribute {name, value}."""

    def __init__(self, uid, name, value):
        super().__init__(enums.Tags.REQUEST_PAYLOAD)
        self.parts = [
            attributes.UniqueIdentifier(uid),
            objects.Attribute(
                attribute_name=objects.Attribute.AttributeName(name),
                attribute_value=attributes.CustomAttribute(value)),
        ]

    def write(self, output_stream, kmip_version=enums.KMIPVersion.KMIP_1_1):
        inner = utils.BytearrayStream()
        for part in self.parts:
            part.write(inner, kmip_version=kmip_version)
        self.length = inner.length()
        super().write(output_stream, kmip_version=kmip_version)
        output_stream.write(inner.buffer)


def send(proxy, batch):
    """Sends a batch and gives the result status of each answer, read off the bytes: PyKMIP cannot read the payloads."""
    header = messages.RequestHeader(
        protocol_version=contents.ProtocolVersion(1, 1), batch_count=contents.BatchCount(len(batch)))
    stream = utils.BytearrayStream()
    messages.RequestMessage(request_header=header, batch_items=batch).write(
        stream, kmip_version=enums.KMIPVersion.KMIP_1_1)
    proxy.protocol.write(stream.buffer)
    answer = proxy.protocol.read().buffer
    result_status = b"\x42\x00\x7f\x05\x00\x00\x00\x04"
    return [int.from_bytes(part[:4], "big") for part in answer.split(result_status)[1:]]


def life_cycle(client):
    """A named key from its creation to its destruction, and the refusals in between."""
    name = "pykmip-%d" % time.monotonic_ns()
    uid = client.create(enums.CryptographicAlgorithm.AES, 256, name=name, cryptographic_usage_mask=CIPHER_MASK)
    found = client.locate(attributes=[AttributeFactory().create_attribute(
        enums.AttributeType.NAME, attributes.Name.create(name, enums.NameType.UNINTERPRETED_TEXT_STRING))])
    require(found == [uid], "located %s, not %s" % (found, uid))
    client.activate(uid)
    require(client.get(uid).value == client.get(uid).value, "two Gets give two keys")
    try:
        client.destroy(uid)
    except exceptions.KmipOperationFailure:
        pass
    else:
        raise AssertionError("an active key was destroyed")
    client.revoke(enums.RevocationReasonCode.CESSATION_OF_OPERATION, uid)
    require(state(client, uid) == enums.State.DEACTIVATED, "the key is not deactivated")
    client.destroy(uid)
    try:
        client.get(uid)
    except exceptions.KmipOperationFailure:
        pass
    else:
        raise AssertionError("a destroyed key was given")


def register(client):
    """A key brought along comes back the same."""
    key = b"0123456789abcdef0123456789ABCDEF"
    uid = client.register(pie_objects.SymmetricKey(enums.CryptographicAlgorithm.AES, 256, key, CIPHER_MASK))
    require(client.get(uid).value == key, "the registered key came back as another")
    client.destroy(uid)


def state(client, uid):
    _, found = client.get_attributes(uid, ["State"])
    require(len(found) == 1, "State is %d attributes" % len(found))
    return found[0].attribute_value.value


def throughput(arguments):
    """One key over some connections, as often as the server answers."""
    with connect(arguments) as client:
        uid = client.create(enums.CryptographicAlgorithm.AES, 256, cryptographic_usage_mask=CIPHER_MASK)
    times, mutex, end = [], threading.Lock(), time.monotonic() + arguments.seconds

    def get():
        mine = []
        with connect(arguments) as client:
            while time.monotonic() < end:
                begun = time.monotonic()
                client.get(uid)
                mine.append(time.monotonic() - begun)
        with mutex:
            times.extend(mine)

    threads = [threading.Thread(target=get) for _ in range(arguments.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    print("throughput: %.0f Get/s, p50 %.2fms, p99 %.2fms, %d clients" % (
        len(times) / arguments.seconds, 1e3 * times[len(times) // 2], 1e3 * times[int(0.99 * (len(times) - 1))],
        arguments.clients))


def connect(arguments):
    host, port = arguments.address.rsplit(":", 1)
    version = {
        "1.0": enums.KMIPVersion.KMIP_1_0, "1.1": enums.KMIPVersion.KMIP_1_1, "1.2": enums.KMIPVersion.KMIP_1_2,
        "1.3": enums.KMIPVersion.KMIP_1_3, "1.4": enums.KMIPVersion.KMIP_1_4,
    }[arguments.version]
    return ProxyKmipClient(
        hostname=host, port=int(port), cert=arguments.cert, key=arguments.key, ca=arguments.ca,
        ssl_version="PROTOCOL_TLSv1_2", config_file="/dev/null",
        kmip_version=version)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--address", "--ca", "--cert", "--key"):
        parser.add_argument(name, required=True)
    parser.add_argument("--version", default="1.2")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("scenario", nargs="+")
    arguments = parser.parse_args()
    scenarios = {"vcenter": vcenter, "life-cycle": life_cycle, "register": register}
    for name in arguments.scenario:
        try:
            if name == "throughput":
                throughput(arguments)
                continue
            with connect(arguments) as client:
                scenarios[name](client)
        except Exception as error:
            traceback.print_exc()
            print("failed %s: %s" % (name, error))
            sys.exit(1)
        print("ok %s" % name)


if __name__ == "__main__":
    main()
