"""RLNH as specified, over one connection: names, hunts, signals."""

import struct

QUERY_NAME, PUBLISH, UNPUBLISH, UNPUBLISH_ACK, INIT, INIT_REPLY, PUBLISH_PEER = range(1, 8)


def text(name):
    name = name.encode() + b"\0"
    return name + bytes(-len(name) % 4)


class Link:
    """`send(src, dst, bytes)` and `disconnect()` act on the connection; `log` receives events for the user."""

    def __init__(self, send, disconnect, log, version=2):
        self.send, self.disconnect, self.log, self.version = send, disconnect, log, version
        self.names = {}  # local endpoints: names and link addresses (0: none)
        self.hunted = []  # local hunts: hunter and name
        self.reset()

    def reset(self):
        self.expect = None
        self.spoken = self.version
        self.used = set()  # local link addresses that must not be reused yet
        self.names = {name: 0 for name in self.names}
        self.remote = {}  # link address: name
        self.wanted = []  # names that the peer hunts for

    def message(self, kind, *words, tail=b""):
        self.send(0, 0, struct.pack(f">{1 + len(words)}I", kind, *words) + tail)

    def connected(self):
        self.reset()
        self.expect = INIT
        self.message(INIT, self.version)

    def publish(self, name):
        if self.names[name] == 0:
            address = next(n for n in range(1, 100000) if n not in self.used)
            self.used.add(address)
            self.names[name] = address
            self.message(PUBLISH, address, tail=text(name))
        return self.names[name]

    def is_up(self):
        return self.expect == 0

    def open(self, name):
        self.names[name] = 0
        if name in self.wanted:
            self.wanted = [other for other in self.wanted if other != name]
            self.publish(name)

    def close(self, name):
        address = self.names.pop(name)
        if address:
            self.message(UNPUBLISH, address)

    def hunt(self, hunter, name):
        self.hunted.append((hunter, name))
        if self.is_up():
            self.message(QUERY_NAME, self.publish(hunter), tail=text(name))

    def signal(self, sender, receiver, number, body):
        to = next(address for address, name in self.remote.items() if name == receiver)
        self.send(self.publish(sender), to, struct.pack(">I", number) + body)

    def deliver(self, src, dst, message):
        if dst != 0:
            mine = [name for name, address in self.names.items() if address == dst]
            if mine and src in self.remote:
                number = struct.unpack(">I", message[:4])[0]
                self.log(("signal", self.remote[src], mine[0], number, message[4:]))
            return
        kind = struct.unpack(">I", message[:4])[0] & 0xFF
        if self.expect and kind != self.expect:
            return self.disconnect()
        word = struct.unpack(">I", message[4:8])[0]
        name = message[8:].split(b"\0")[0].decode()
        if kind == INIT:
            self.spoken = min(word, self.version)
            self.expect = INIT_REPLY
            # Linux sends 13 bytes; version 1 has no features.
            tail = b"\0xyz\0" if self.version > 1 else b""
            self.message(INIT_REPLY, 0 if word <= self.version else 1, tail=tail)
        elif kind == INIT_REPLY:
            self.expect = 0
            self.log(("up", self.spoken))
            for hunter, wanted in self.hunted:
                self.message(QUERY_NAME, self.publish(hunter), tail=text(wanted))
        elif kind == QUERY_NAME:
            if name in self.names:
                self.publish(name)
            else:
                self.wanted.append(name)
        elif kind == PUBLISH:
            self.remote[word] = name
            self.log(("published", name))
            self.hunted = [hunt for hunt in self.hunted if hunt[1] != name]
        elif kind == UNPUBLISH:
            if word in self.remote:
                self.log(("unpublished", self.remote.pop(word)))
                self.message(UNPUBLISH_ACK, word)
        elif kind == UNPUBLISH_ACK:
            self.used.discard(word)
            self.log(("acked", word))
        elif kind == PUBLISH_PEER:
            self.log(("peer", word, struct.unpack(">I", message[8:12])[0]))
