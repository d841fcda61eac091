"""RIOCM as specified: packets and one connection. A peer for tests, written independently of the tested engine. It shares
only the vectors, which were written by hand.

The caller passes the time in milliseconds. All fields are big-endian.
"""

import random
import struct

PROTOCOL = 0x22CF
COMMON = {
    # name: code, fields behind the type byte in order
    "CONN_REQ": (0x81, ">BHHBBHH", "generation mtu dst_port rsvd hb sender src_port"),
    "CONN_ACK": (0x82, ">BHHBBHHH", "generation mtu dst_port generation_ack hb sender src_port my_cid"),
    "CONN_RESET": (0x83, ">BHHHHH", "generation mtu dst_port rsvd sender src_port"),
    "HEARTBEAT": (0x06, ">BHHHHH", "pad rsvd dst_port dst_cid sender src_port"),
    "SINGLE": (0x01, ">BHHHHHIII", "msgid seqno dst_port dst_cid sender src_port src dst size"),
    "FRAG_START": (0x02, ">BHHHHHIII", "msgid seqno dst_port dst_cid sender src_port src dst size"),
    "FRAG": (0x03, ">BHHHHH", "msgid seqno dst_port dst_cid sender src_port"),
    "PATCH_START": (
        0x04,
        ">BHHHHHIIIHH",
        "msgid seqno dst_port dst_cid sender src_port src dst size count_frag count_patch",
    ),
    "PATCH": (0x05, ">BHHHHH", "msgid seqno dst_port dst_cid sender src_port"),
}
NAMES = {code: name for name, (code, _, _) in COMMON.items()}
FRAME, HEAD, TAIL = 4, 28, 12  # rio_frame; headers of PATCH_START and of FRAG


def encode(kind, payload=b"", **fields):
    """Encodes a packet. Missing fields are 0."""
    code, layout, names = COMMON[kind]
    values = [fields.pop(name, 0) for name in names.split()]
    assert not fields, fields
    body = bytes([code]) + struct.pack(layout, *values) + payload
    return struct.pack(">HH", PROTOCOL, len(body)) + body


def decode(packet):
    """Name, fields and payload of a packet; None if it is malformed."""
    if len(packet) < 5 or struct.unpack(">H", packet[:2])[0] != PROTOCOL:
        return None
    name = NAMES.get(packet[4])
    if name is None:
        return None
    _, layout, names = COMMON[name]
    size = struct.calcsize(layout)
    if len(packet) < 5 + size:
        return None
    values = struct.unpack(layout, packet[5 : 5 + size])
    return name, dict(zip(names.split(), values)), packet[5 + size :]


def pattern(seed, size):
    """The pattern of messages."""
    return bytes((seed * 31 + i * 7 + (i >> 8) * 3) & 0xFF for i in range(size))


class Connection:
    """One connection. `out` receives packets; `log` receives events for the layer above."""

    def __init__(self, my_id, my_port, peer_id, peer_port, mtu, hb, cid, generation, now, out, log):
        self.my_id, self.my_port = my_id, my_port
        self.peer_id, self.peer_port = peer_id, peer_port
        self.wanted_mtu, self.hb, self.cid, self.generation = mtu, hb, cid, generation
        self.out, self.log = out, log
        self.state = "DISCONNECTED"
        self.peer_generation = self.peer_cid = 0
        self.mtu, self.agreed_hb = 0, hb
        self.random = random.Random(my_id * 7 + generation)
        self.deadline = now + self.pause()
        self.alive = 0
        self.clear()

    def clear(self):
        self.seqno, self.msgid, self.expected = 0, 0, 0
        self.reorder, self.messages = {}, {}
        self.early = None

    def pause(self):
        return max(1, 200 + self.random.randint(-128, 127))

    # Transmission.

    def packet(self, kind, payload=b"", **fields):
        fields |= {"dst_port": self.peer_port, "sender": self.my_id, "src_port": self.my_port}
        self.out(encode(kind, payload, **fields))

    def ack(self):
        self.packet(
            "CONN_ACK",
            generation=self.generation,
            mtu=self.mtu,
            generation_ack=self.peer_generation,
            hb=self.agreed_hb,
            my_cid=self.cid,
        )

    def reset(self):
        self.packet("CONN_RESET", generation=self.generation)

    def data(self, kind, msgid, payload, **fields):
        seqno, self.seqno = self.seqno, (self.seqno + 1) & 0xFFFF
        self.packet(kind, payload, msgid=msgid, seqno=seqno, dst_cid=self.peer_cid, **fields)

    def send(self, src, dst, message, patch=False):
        assert self.state == "CONNECTED"
        self.msgid = (self.msgid + 1) & 0xFF
        head = {"src": src, "dst": dst, "size": len(message)}
        first, other = self.mtu - 24 - FRAME, self.mtu - TAIL - FRAME
        if len(message) <= first:
            self.data("SINGLE", self.msgid, message, **head)
        elif patch:
            self.send_patched(message, head)
        else:
            self.data("FRAG_START", self.msgid, message[:first], **head)
            for at in range(first, len(message), other):
                self.data("FRAG", self.msgid, message[at : at + other])

    def send_patched(self, message, head):
        """Patched fragmentation: the sender writes headers over its own buffer. The buffer is cut into pieces of the MTU. A
        header overwrites the start of each piece, and the overwritten bytes follow in patches."""
        span = self.mtu & ~7
        pieces = [message[at : at + span] for at in range(0, len(message), span)]
        rest = b""
        if len(pieces) > 1 and len(pieces[-1]) <= TAIL + FRAME:
            rest = pieces.pop()
        units = [pieces[0][: HEAD + FRAME]] + [piece[: TAIL + FRAME] for piece in pieces[1:]]
        # Patches of different lengths, each of whole units. The rest follows in the last patch or in a separate one.
        room, patches = self.mtu - TAIL - FRAME, []
        while units:
            patch = units.pop(0)
            while units and len(patch) + len(units[0]) <= room and self.random.random() < 0.9:
                patch += units.pop(0)
            patches.append(patch)
        if rest and len(patches[-1]) + len(rest) <= room:
            patches[-1] += rest
        elif rest:
            patches.append(rest)
        self.data(
            "PATCH_START",
            self.msgid,
            pieces[0][HEAD + FRAME :],
            count_frag=len(pieces) - 1,
            count_patch=len(patches),
            **head,
        )
        for piece in pieces[1:]:
            self.data("FRAG", self.msgid, piece[TAIL + FRAME :])
        for patch in patches:
            self.data("PATCH", self.msgid, patch)

    # State machine.

    def connect(self):
        assert self.state == "DISCONNECTED"
        self.clear()
        self.state = "CONNECTING"

    def disconnect(self):
        if self.state == "CONNECTED":
            self.reset()
        self.down("asked")

    def down(self, why):
        if self.state != "DISCONNECTED":
            self.state = "DISCONNECTED"
            self.clear()
            self.log(("disconnected", why))

    def fail(self, why):
        self.reset()
        self.down(why)

    def at(self, now):
        while self.deadline <= now:
            if self.state == "CONNECTED":
                self.alive -= 1
                if self.alive == 0:
                    self.fail("silent")
                    self.deadline += self.pause()
                else:
                    self.packet("HEARTBEAT", dst_cid=self.peer_cid)
                    self.deadline += 100 * self.agreed_hb
            else:
                if self.state == "CONNECTING":
                    self.packet("CONN_REQ", generation=self.generation, mtu=self.wanted_mtu, hb=self.hb)
                self.deadline += self.pause()

    def receive(self, name, fields, payload):
        if name == "CONN_RESET":
            self.down("reset")
        elif name in ("CONN_REQ", "CONN_ACK"):
            self.receive_conn(name, fields)
        elif name == "HEARTBEAT":
            if self.state == "CONNECTED":
                self.alive = 3
        else:
            self.receive_data(name, fields, payload)

    def receive_conn(self, name, fields):
        right = (self.generation & 0xFF, self.mtu, self.agreed_hb)
        if name == "CONN_ACK" and (fields["generation_ack"], fields["mtu"], fields["hb"]) == right:
            if self.state == "CONNECTING":
                self.peer_cid = fields["my_cid"]
                self.ack()
                self.alive, self.state = 3, "CONNECTED"
                self.log(("connected",))
                if self.early is not None:
                    early, self.early = self.early, None
                    self.expected = 1
                    self.take(*early)
            return
        # A wrong ACK is handled as a REQ.
        if fields["mtu"] <= 64:
            return
        self.peer_generation = fields["generation"]
        self.mtu = min(fields["mtu"], self.wanted_mtu)
        self.agreed_hb = max(fields["hb"], self.hb)
        if self.state == "CONNECTING":
            self.ack()
        elif self.state == "CONNECTED":
            self.down("restarted")

    def receive_data(self, name, fields, payload):
        seqno = fields["seqno"]
        if self.state == "CONNECTING" and name == "SINGLE" and seqno == 0 and self.early is None:
            self.early = (name, fields, payload)
        if self.state != "CONNECTED":
            return
        self.alive = 3
        ahead = (seqno - self.expected) & 0xFFFF
        if ahead >= 0x8000 or seqno in self.reorder:
            return
        if ahead >= 64:
            return self.fail("reorder queue exhausted")
        self.reorder[seqno] = (name, fields, payload)
        while self.expected in self.reorder and self.state == "CONNECTED":
            packet = self.reorder.pop(self.expected)
            self.expected = (self.expected + 1) & 0xFFFF
            self.take(*packet)

    # Messages.

    def take(self, name, fields, payload):
        msgid = fields["msgid"]
        if name == "SINGLE":
            if len(payload) < fields["size"]:
                return self.fail("short single")
            return self.deliver(fields, payload[: fields["size"]])
        if name in ("FRAG_START", "PATCH_START"):
            if msgid in self.messages:
                return self.fail("message id in use")
            cut = self.mtu - FRAME - (24 if name == "FRAG_START" else HEAD)
            left = fields.get("count_frag")
            if left is None:
                left = -(-(fields["size"] - cut) // (self.mtu - TAIL - FRAME))
            self.messages[msgid] = {
                "fields": fields,
                "parts": [payload[:cut]],
                "left": left,
                "patched": name == "PATCH_START",
                "patches": [],
            }
            return
        message = self.messages.get(msgid)
        if message is None:
            return self.fail("no message for " + name)
        payload = payload[: self.mtu - TAIL - FRAME]
        if name == "FRAG":
            message["parts"].append(payload)
            message["left"] -= 1
            if message["left"] < 0:
                return self.fail("too many fragments")
        else:
            message["patches"].append(payload)
        fields = message["fields"]
        if message["patched"]:
            if message["left"] or len(message["patches"]) < fields["count_patch"]:
                return
        elif message["left"]:
            return
        del self.messages[msgid]
        whole = self.join(message)
        if len(whole) < fields["size"]:
            return self.fail("message too short")
        self.deliver(fields, whole[: fields["size"]])

    @staticmethod
    def join(message):
        parts = message["parts"]
        if not message["patched"]:
            return b"".join(parts)
        # Take only whole units out of a patch while parts are left to patch.
        whole, next_part, rest = [], 0, b""
        for patch in message["patches"]:
            while next_part < len(parts):
                unit = HEAD + FRAME if next_part == 0 else TAIL + FRAME
                if len(patch) < unit:
                    break
                whole += [patch[:unit], parts[next_part]]
                patch, next_part = patch[unit:], next_part + 1
            rest += patch
        return b"".join(whole) + rest

    def deliver(self, fields, message):
        self.log(("deliver", fields["src"], fields["dst"], message))


def self_test():
    for line in open(__file__.replace("riocm.py", "vectors.txt")):
        if line.startswith("#") or not line.strip():
            continue
        text, data = line.split("|")
        kind, *pairs = text.split()
        fields = dict(pair.split("=") for pair in pairs)
        payload = bytes.fromhex(fields.pop("payload", ""))
        fields = {name: int(value) for name, value in fields.items()}
        assert encode(kind, payload, **fields) == bytes.fromhex(data), line
        name, found, rest = decode(bytes.fromhex(data))
        assert (name, rest) == (kind, payload), line
        assert all(found[field] == value for field, value in fields.items()), line


if __name__ == "__main__":
    self_test()
