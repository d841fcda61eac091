#!/usr/bin/env python3
"""A LINX node over a Unix datagram socket, for tests: `peer.py OWN_PATH TEST_PATH`.

A datagram is a command (`O` and text), the answer to it (`A` and text), or a RapidIO message (`M`, source id and
destination id of 16 bits, mailbox of 8, and the message). Commands set the time. Messages that a command causes precede
its answer. The answer lists the events since the last one, one per line.
"""

import os
import socket
import struct
import sys
import zlib

import riocm
import rlnh


class Peer:
    def __init__(self, socket, test):
        self.socket, self.test, self.now = socket, test, 0
        self.happened = []
        self.boot(1)

    def boot(self, generation):
        self.table, self.generation, self.link, self.linked = {}, generation, None, None

    # RapidIO.

    def out(self, to, mailbox, packet):
        # The length of RapidIO messages is a multiple of 8 bytes. The padding is arbitrary.
        packet += b"\xee" * (-len(packet) % 8)
        self.socket.sendto(b"M" + struct.pack(">HHB", self.my_id, to, mailbox) + packet, self.test)

    def receive(self, data):
        source, _, _ = struct.unpack(">HHB", data[:5])
        found = riocm.decode(data[5:])
        if found is None:
            return self.log(("stray",))
        name, fields, payload = found
        if name.startswith("CONN"):
            ends = (fields["sender"], fields["src_port"], fields["dst_port"])
            mine = [c for c in self.table.values() if (c.peer_id, c.peer_port, c.my_port) == ends]
            connection = mine[0] if mine else None
        else:
            connection = self.table.get(fields["dst_cid"])
            if connection is not None:
                # Double check: the id may belong to another connection by now.
                ends = (fields["sender"], fields["src_port"])
                if (connection.peer_id, connection.peer_port) != ends:
                    return self.log(("stale", name))
        if connection is None:
            return self.log(("unknown", name))
        connection.receive(name, fields, payload)

    # Events.

    def log(self, entry):
        if self.linked is not None:
            if entry[0] == "connected":
                return self.link.connected()
            if entry[0] == "disconnected":
                self.happened.append(entry)
                self.link.reset()
                return self.linked.connect()
            if entry[0] == "deliver":
                return self.link.deliver(*entry[1:])
        self.happened.append(entry)

    def answer(self):
        def word(value):
            if isinstance(value, bytes):
                return f"{len(value)} {zlib.crc32(value):08x}"
            return str(value)

        lines = [" ".join(word(value) for value in entry) for entry in self.happened]
        self.happened = []
        return "\n".join(lines)

    # Commands.

    def order(self, name, *words):
        numbers = [int(word) for word in words if word.lstrip("-").isdigit()]
        if name == "at":
            self.now = numbers[0]
            for connection in list(self.table.values()):
                connection.at(self.now)
        elif name == "create":
            self.my_id, my_port, peer_id, peer_port, mailbox, mtu, hb, cid = numbers
            connection = riocm.Connection(
                self.my_id, my_port, peer_id, peer_port, mtu, hb, cid, self.generation, self.now,
                lambda packet: self.out(peer_id, mailbox, packet), self.log,
            )  # fmt: skip
            self.table[cid] = connection
            self.generation += 1
        elif name == "connect":
            self.table[numbers[0]].connect()
        elif name == "disconnect":
            self.table[numbers[0]].disconnect()
        elif name == "state":
            return self.table[numbers[0]].state
        elif name == "send":
            cid, src, dst, size, seed, patch = numbers
            self.table[cid].send(src, dst, riocm.pattern(seed, size), bool(patch))
        elif name == "frame":
            # A packet of the connection with the given fields, without checks.
            fields = dict(word.split("=") for word in words[1:])
            payload = bytes.fromhex(fields.pop("payload", ""))
            fields = {key: int(value) for key, value in fields.items()}
            self.out(fields.pop("to"), 2, riocm.encode(words[0], payload, **fields))
        elif name == "reboot":
            self.boot(1)
        elif name == "link":
            cid, version = numbers
            connection = self.table[cid]
            self.link = rlnh.Link(connection.send, connection.disconnect, self.log, version)
            self.linked = connection
            connection.connect()
        elif name == "open":
            self.link.open(words[0])
        elif name == "close":
            self.link.close(words[0])
        elif name == "hunt":
            self.link.hunt(words[0], words[1])
        elif name == "signal":
            number, size, seed = numbers
            self.link.signal(words[0], words[1], number, riocm.pattern(seed, size))
        else:
            raise ValueError(name)
        return self.answer()

    def run(self):
        while True:
            data = self.socket.recv(1 << 17)
            if data[:1] == b"M":
                self.receive(data[1:])
            elif data == b"Oend":
                return
            else:
                answer = self.order(*data[1:].decode().split())
                self.socket.sendto(b"A" + answer.encode(), self.test)


def main():
    riocm.self_test()
    own, test = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        mine.bind(own)
        mine.sendto(b"Aready", test)
        try:
            Peer(mine, test).run()
        finally:
            os.unlink(own)


if __name__ == "__main__":
    main()
