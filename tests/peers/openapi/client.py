"""What a program does with a client that was generated from the API's document: it signs in with a token, makes a VM, runs
it, lists, is refused, and cleans up. Only the generated code speaks to the API.

  client.py URL CERTIFICATE TOKEN-FILE
"""

import ssl
import sys
import time

import httpx
from strongroom_client import AuthenticatedClient
from strongroom_client.api.access import me_show, role_list, token_create, token_revoke
from strongroom_client.api.server import readyz
from strongroom_client.api.task import task_show
from strongroom_client.api.vm import vm_create, vm_delete, vm_list, vm_set, vm_show, vm_start, vm_stop, vm_ticket
from strongroom_client.api.volume import volume_change
from strongroom_client.models import (
    AddDisk,
    BootDisk,
    CdromAbsent,
    ChangeAnswerError,
    ChangeAnswerTask,
    ChangeVolumes,
    CreateToken,
    CreateVm,
    DesiredPower,
    ErrorBody,
    ErrorCode,
    Lifecycle,
    Me,
    NewToken,
    PatchVm,
    PowerState,
    Privilege,
    ScopeSite,
    ScopeSiteType,
    StopVm,
    TagChanges,
    Task,
    TaskState,
    TicketUseConsole,
    TicketUseConsoleOperation,
    VmSummary,
    VmView,
    VolumeChangeCreate,
    VolumeChangeCreateChange,
    VolumeChangeDelete,
    VolumeChangeDeleteChange,
)

MIB = 1 << 20

url, certificate, token_file = sys.argv[1:]
trusted = ssl.create_default_context(cafile=certificate)
timeout = httpx.Timeout(90)


def client_of(token):
    return AuthenticatedClient(base_url=url, token=token, verify_ssl=trusted, timeout=timeout)


with open(token_file) as file:
    owner = client_of(file.read().strip())


def done(task):
    """The task's end, which is waited for."""
    assert isinstance(task, Task), task
    while task.state == TaskState.RUNNING:
        task = task_show.sync(str(task.id), client=owner, wait_s=60)
        assert isinstance(task, Task), task
    assert task.state == TaskState.DONE, task
    return task


def refused(answer, code, status):
    """The problem, which is typed."""
    assert answer.status_code == status, answer
    assert isinstance(answer.parsed, ErrorBody), answer
    assert answer.parsed.error.code == code, answer
    assert answer.parsed.error.message, answer
    return answer.parsed.error


assert readyz.sync_detailed(client=owner).status_code == 200
me = me_show.sync(client=owner)
assert isinstance(me, Me) and Privilege.MIGRATE in me.site, me

# Make, wait, read.
names = ["python1", "python2", "python3"]
for name in names:
    wish = CreateVm(name=name, memory_bytes=64 * MIB, disks=[AddDisk(size_bytes=8 * MIB)], nics=[], tags=["made=python"])
    done(vm_create.sync(client=owner, body=wish))
vm = vm_show.sync("python1", client=owner)
assert isinstance(vm, VmView), vm
assert (vm.name, vm.encrypted, vm.power, vm.lifecycle) == ("python1", True, PowerState.STOPPED, Lifecycle.PRESENT), vm
assert isinstance(vm.boot, BootDisk) and isinstance(vm.cdrom, CdromAbsent), vm
assert [disk.size_bytes for disk in vm.disks] == [8 * MIB], vm

# Change.
done(vm_set.sync("python1", client=owner, body=PatchVm(notes="made by a generated client", tags=TagChanges(set_=["a=b"]))))
vm = vm_show.sync("python1", client=owner)
assert vm.notes == "made by a generated client" and "a=b" in vm.tags, vm

# Start, read the state, open a console, stop.
done(vm_start.sync("python1", client=owner))
vm = vm_show.sync("python1", client=owner)
assert (vm.power, vm.desired) == (PowerState.RUNNING, DesiredPower.RUNNING), vm
use = TicketUseConsole(operation=TicketUseConsoleOperation.CONSOLE, read_only=True)
ticket = vm_ticket.sync("python1", client=owner, body=use)
assert ticket.ticket, ticket
done(vm_stop.sync("python1", client=owner, body=StopVm(force=True)))
assert vm_show.sync("python1", client=owner).power == PowerState.STOPPED

# Pages.
found, cursor, pages = [], None, 0
while cursor is not None or pages == 0:
    page = vm_list.sync(client=owner, limit=2, tag="made=python", **({"cursor": cursor} if cursor else {}))
    assert page.total == len(names) and all(isinstance(item, VmSummary) for item in page.items), page
    found += [item.name for item in page.items]
    cursor, pages = page.next_ or None, pages + 1
assert (sorted(found), pages) == (names, 2), (found, pages)

# Changes of volumes are one of several types, and so are their answers.
wanted = [
    VolumeChangeCreate(change=VolumeChangeCreateChange.CREATE, name="data1", size_bytes=8 * MIB),
    VolumeChangeDelete(change=VolumeChangeDeleteChange.DELETE, volume="no-such-volume"),
]
answers = volume_change.sync(client=owner, body=ChangeVolumes(changes=wanted)).changes
assert isinstance(answers[0], ChangeAnswerTask) and isinstance(answers[1], ChangeAnswerError), answers
assert answers[1].error.code == ErrorCode.NOT_FOUND, answers
done(answers[0].task)

# Refusals.
missing = refused(vm_show.sync_detailed("no-such-vm", client=owner), ErrorCode.NOT_FOUND, 404)
assert missing.next_step, missing
wish = CreateVm(name="python1", memory_bytes=64 * MIB)
refused(vm_create.sync_detailed(client=owner, body=wish), ErrorCode.NAME_TAKEN, 409)
refused(vm_show.sync_detailed("python1", client=client_of("wrong")), ErrorCode.UNAUTHORIZED, 401)
assert "auditor" in [role.name for role in role_list.sync(client=owner).items]
wish = CreateToken(
    name="reader", role="auditor", scope=ScopeSite(type_=ScopeSiteType.SITE), expires_unix_seconds=int(time.time()) + 3600
)
made = token_create.sync(client=owner, body=wish)
assert isinstance(made, NewToken), made
reader = client_of(made.token)
assert vm_show.sync("python1", client=reader).name == "python1"
forbidden = refused(vm_start.sync_detailed("python1", client=reader), ErrorCode.FORBIDDEN, 403)
assert "power" in forbidden.message, forbidden
token_revoke.sync_detailed("reader", client=owner)
refused(vm_show.sync_detailed("python1", client=reader), ErrorCode.UNAUTHORIZED, 401)

for name in names:
    done(vm_delete.sync(name, client=owner))
refused(vm_show.sync_detailed("python1", client=owner), ErrorCode.NOT_FOUND, 404)
print("a generated client made, ran and deleted a VM")
