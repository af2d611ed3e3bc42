"""Carries frames between two TAP devices, each way with a delay and at a rate.

  carry.py DEVICE DEVICE DELAY_SECONDS BYTES_PER_SECOND

Makes both devices, says `plugged`, and carries frames from the first line of its input to the end
of it. Segments stay together as their sender has them (virtio_net_hdr): so few frames pass, and two
processes carry gigabits a second.
"""

import collections, fcntl, os, select, signal, struct, sys, time

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
FRAME_BYTES_MAX = 1 << 17
# How far ahead of the rate frames are taken from their sender. The rest waits in the sender's
# sockets, so that no frame is lost and no queue adds to the delay.
AHEAD_SECONDS = 0.002


def plug(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return device


def carry(source, sink, delay, rate):
    under_way, free_at, clock = collections.deque(), 0.0, time.monotonic
    while True:
        now = clock()
        while under_way and under_way[0][0] <= now:
            try:
                os.write(sink, under_way.popleft()[1])
            except OSError:
                pass  # Its device is down, or its queue full: the frame is lost.
        ahead = free_at - now - AHEAD_SECONDS
        if ahead > 0:
            time.sleep(min(ahead, max(under_way[0][0] - now, 0)) if under_way else ahead)
            continue
        try:
            frame = os.read(source, FRAME_BYTES_MAX)
        except BlockingIOError:
            wait = max(under_way[0][0] - clock(), 0) if under_way else None
            select.select([source], [], [], wait)
            continue
        except OSError:
            return  # Its device is gone.
        free_at = max(free_at, clock()) + len(frame) / rate
        under_way.append((free_at + delay, frame))


def main():
    [one, other] = [plug(name) for name in sys.argv[1:3]]
    delay, rate = map(float, sys.argv[3:5])
    print("plugged", flush=True)
    if not sys.stdin.readline():
        return
    carrying = []
    for ends in [(one, other), (other, one)]:
        child = os.fork()
        if child == 0:
            carry(*ends, delay, rate)
            os._exit(0)
        carrying.append(child)
    sys.stdin.readline()
    for child in carrying:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


main()
