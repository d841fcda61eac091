#!/usr/bin/env python3
"""A LINX node at the other end of a TCP connection: `tcp.py HOST PORT NAME SIGNALS`.

It connects, hunts for NAME, sends SIGNALS signals of many sizes there, several at a time, and checks that each comes
back unchanged. `tcp.py HOST PORT NAME --serve` publishes NAME instead, returns each signal to its sender until the
connection ends, and prints events of names. The header is that of the TCP connection manager, version 3 ("LINX
Protocols" version 21, 7.1.1).
"""

import socket
import struct
import sys

import riocm
import rlnh

CONN, UDATA, PING, PONG = 0x43, 0x55, 0x50, 0x51
HEADER = ">BBHIII"
AHEAD = 8
PATIENCE = 60


class Peer:
    def __init__(self, stream, name, signals):
        self.stream, self.name, self.left = stream, name, signals
        self.sent, self.received, self.pings = 0, 0, 0
        self.link = rlnh.Link(self.send, self.disconnect, self.log)
        self.link.open("tester")
        self.link.hunt("tester", name)

    def header(self, kind, source=0, destination=0, size=0):
        return struct.pack(HEADER, kind, 3, 0, source, destination, size)

    def send(self, source, destination, message):
        self.stream.sendall(self.header(UDATA, source, destination, len(message)) + message)

    def disconnect(self):
        raise SystemExit("the appliance sent an unexpected message")

    def size(self, number):
        # Up to the longest signal: 64 KiB with its number.
        return (number * number * 37) % 65533

    def more(self):
        while self.sent < self.left and self.sent < self.received + AHEAD:
            body = riocm.pattern(self.sent, self.size(self.sent))
            self.link.signal("tester", self.name, 1000 + self.sent, body)
            self.sent += 1

    def log(self, entry):
        if entry == ("published", self.name):
            self.more()
        elif entry[0] == "signal":
            _, sender, receiver, number, body = entry
            expected = riocm.pattern(self.received, self.size(self.received))
            if (sender, receiver, number) != (self.name, "tester", 1000 + self.received) or body != expected:
                raise SystemExit(f"signal {number} from {sender} is wrong")
            self.received += 1
            self.more()

    def read(self, length):
        data = b""
        while len(data) < length:
            piece = self.stream.recv(length - len(data))
            if not piece:
                raise SystemExit("the appliance has ended the connection")
            data += piece
        return data

    def run(self):
        self.stream.sendall(self.header(CONN))
        # Until all signals and a PING have arrived.
        while self.received < self.left or self.pings == 0:
            kind, version, _, source, destination, size = struct.unpack(HEADER, self.read(16))
            body = self.read(size) if kind in (CONN, UDATA) else b""
            if kind == CONN:
                if version != 3:
                    raise SystemExit(f"version {version}")
                self.link.connected()
            elif kind == PING:
                self.pings += 1
                self.stream.sendall(self.header(PONG))
            elif kind == UDATA:
                self.link.deliver(source, destination, body)
        print(f"{self.received} signals came back unchanged")


class Server(Peer):
    """Returns signals to their senders."""

    def __init__(self, stream, name):
        self.stream, self.name = stream, name
        self.left, self.received, self.pings = 1, 0, 0
        self.link = rlnh.Link(self.send, self.disconnect, self.log)
        self.link.open(name)

    def log(self, entry):
        if entry[0] == "signal":
            _, sender, receiver, number, body = entry
            self.link.signal(receiver, sender, number, body)
        else:
            print(*entry, flush=True)


def main():
    host, port, name, signals = sys.argv[1:]
    with socket.create_connection((host, int(port)), PATIENCE) as stream:
        stream.settimeout(PATIENCE)
        if signals == "--serve":
            Server(stream, name).run()
        else:
            Peer(stream, name, int(signals)).run()


if __name__ == "__main__":
    main()
