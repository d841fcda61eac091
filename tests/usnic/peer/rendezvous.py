#!/usr/bin/env python3
"""rendezvous.py ADDRESS PORT JOB.RANK MODEX [APPLIANCE'S JOB.RANK] [LAYOUT]

Registers the modex of a peer's interface at an appliance by usNIC's rendezvous (docs/usnic.md), and prints the
appliance's: `modex HEX JOB RANK`. The peer stays registered until standard input ends.
"""
import socket
import struct
import sys

# Magic, type, reason of a refusal, layout, 0, bytes of text, 0, sender, receiver, modex.
RECORD = struct.Struct("<8sBBBBHHQQ32s")
MAGIC = b"USNICRV\x01"
REQUEST, ANSWER = 1, 2
ANY_NAME = 2**64 - 1


def name(text):
    job, rank = text.split(".")
    return int(job) << 32 | int(rank)


def receive(connection, length):
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            sys.exit("the appliance has closed the connection")
        data += more
    return data


def main(address, port, sender, modex, receiver=None, layout="4"):
    modex = bytes.fromhex(modex)
    receiver = name(receiver) if receiver else ANY_NAME
    with socket.create_connection((address, int(port)), 30) as connection:
        connection.sendall(RECORD.pack(MAGIC, REQUEST, 0, int(layout), 0, 0, 0, name(sender), receiver, modex))
        magic, kind, why, _, _, text, _, theirs, _, modex = RECORD.unpack(receive(connection, RECORD.size))
        if magic != MAGIC or kind != ANSWER:
            sys.exit("the server does not speak usNIC's rendezvous")
        if why:
            sys.exit(f"refused ({why}): {receive(connection, text).decode()}")
        print("modex", modex.hex(), theirs >> 32, theirs & 0xFFFFFFFF, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if not 5 <= len(sys.argv) <= 7:
        sys.exit(__doc__)
    main(*sys.argv[1:])
