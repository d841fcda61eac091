-- RapidIO messages for Wireshark and tshark: RIOCM (LINX over them) and RLNH above it, and channels of Linux's rio_cm:
--
--   tshark -X lua_script:riocm.lua -r FILE
--
-- Captures have the link type USER0 (147). Each packet is a RapidIO message after a header of 8 bytes, big-endian:
-- source id (2), destination id (2), mailbox (1), and three bytes that are 0. Messages to a mailbox whose first two bytes
-- are 22CF are RIOCM's; those whose eleventh byte is 55 are rio_cm's. The fields are described in net/linx/src/wire and
-- net/rapidio/src/rio_cm/wire.rs. `capture start rapidio` on the appliance captures such messages.

local rio = Proto("riomsg", "RapidIO message")
rio.fields.source = ProtoField.uint16("riomsg.source", "Source id", base.HEX)
rio.fields.destination = ProtoField.uint16("riomsg.destination", "Destination id", base.HEX)
rio.fields.mailbox = ProtoField.uint8("riomsg.mailbox", "Mailbox")

local kinds = {
  [0x01] = "SINGLE", [0x02] = "FRAG_START", [0x03] = "FRAG", [0x04] = "PATCH_START", [0x05] = "PATCH",
  [0x06] = "HEARTBEAT", [0x81] = "CONN_REQ", [0x82] = "CONN_ACK", [0x83] = "CONN_RESET",
}
local riocm = Proto("riocm", "LINX RapidIO Connection Manager")
local f = riocm.fields
f.protocol = ProtoField.uint16("riocm.protocol", "Protocol", base.HEX)
f.size = ProtoField.uint16("riocm.size", "Size")
f.type = ProtoField.uint8("riocm.type", "Type", base.HEX, kinds)
f.generation = ProtoField.uint8("riocm.generation", "Generation")
f.mtu = ProtoField.uint16("riocm.mtu", "MTU")
f.msgid = ProtoField.uint8("riocm.msgid", "Message id")
f.seqno = ProtoField.uint16("riocm.seqno", "Sequence number")
f.dst_port = ProtoField.uint16("riocm.dst_port", "Destination port")
f.generation_ack = ProtoField.uint8("riocm.generation_ack", "Generation of the other end")
f.hb = ProtoField.uint8("riocm.hb", "Heartbeat (100 ms)")
f.dst_cid = ProtoField.uint16("riocm.dst_cid", "Destination connection id")
f.sender = ProtoField.uint16("riocm.sender", "Sender", base.HEX)
f.src_port = ProtoField.uint16("riocm.src_port", "Source port")
f.my_cid = ProtoField.uint16("riocm.my_cid", "Connection id of the sender")
f.src = ProtoField.uint32("riocm.src", "Source link address")
f.dst = ProtoField.uint32("riocm.dst", "Destination link address")
f.payl_size = ProtoField.uint32("riocm.payl_size", "Bytes of the message")
f.count_frag = ProtoField.uint16("riocm.count_frag", "FRAG packets")
f.count_patch = ProtoField.uint16("riocm.count_patch", "PATCH packets")
f.payload = ProtoField.bytes("riocm.payload", "Payload")
local malformed = ProtoExpert.new("riocm.malformed", "Shorter than its header, or of no known type",
  expert.group.MALFORMED, expert.severity.ERROR)
riocm.experts = { malformed }

local messages = {
  [1] = "QUERY_NAME", [2] = "PUBLISH", [3] = "UNPUBLISH", [4] = "UNPUBLISH_ACK", [5] = "INIT",
  [6] = "INIT_REPLY", [7] = "PUBLISH_PEER",
}
local rlnh = Proto("rlnh", "LINX RLNH")
local r = rlnh.fields
r.type = ProtoField.uint8("rlnh.type", "Type", base.DEC, messages)
r.linkaddr = ProtoField.uint32("rlnh.linkaddr", "Link address")
r.peer_linkaddr = ProtoField.uint32("rlnh.peer_linkaddr", "Peer link address")
r.name = ProtoField.stringz("rlnh.name", "Name")
r.version = ProtoField.uint32("rlnh.version", "Version")
r.status = ProtoField.uint32("rlnh.status", "Status")
r.features = ProtoField.stringz("rlnh.features", "Features")
r.signo = ProtoField.uint32("rlnh.signo", "Signal number")

function rlnh.dissector(buffer, pinfo, tree)
  if buffer:len() < 8 then return 0 end
  local kind = buffer(3, 1):uint()
  local sub = tree:add(rlnh, buffer(), "RLNH " .. (messages[kind] or "unknown"))
  pinfo.cols.info:append(" " .. (messages[kind] or "unknown"))
  sub:add(r.type, buffer(3, 1))
  if kind == 5 then
    sub:add(r.version, buffer(4, 4))
  elseif kind == 6 then
    sub:add(r.status, buffer(4, 4))
    if buffer:len() > 8 then sub:add(r.features, buffer(8)) end
  else
    sub:add(r.linkaddr, buffer(4, 4))
    if kind <= 2 and buffer:len() > 8 then sub:add(r.name, buffer(8)) end
    if kind == 7 and buffer:len() >= 12 then sub:add(r.peer_linkaddr, buffer(8, 4)) end
  end
  return buffer:len()
end

-- Bytes of headers from the type on.
local lengths = {
  [0x01] = 24, [0x02] = 24, [0x03] = 12, [0x04] = 28, [0x05] = 12, [0x06] = 12,
  [0x81] = 12, [0x82] = 14, [0x83] = 12,
}

function riocm.dissector(buffer, pinfo, tree)
  if buffer:len() < 5 or buffer(0, 2):uint() ~= 0x22cf then return 0 end
  local kind = buffer(4, 1):uint()
  local name, length = kinds[kind], lengths[kind]
  pinfo.cols.protocol = "RIOCM"
  pinfo.cols.info = name or "unknown"
  local sub = tree:add(riocm, buffer(), "RIOCM " .. (name or "unknown"))
  sub:add(f.protocol, buffer(0, 2))
  sub:add(f.size, buffer(2, 2))
  sub:add(f.type, buffer(4, 1))
  if length == nil or buffer:len() < 4 + length then
    sub:add_proto_expert_info(malformed)
    return buffer:len()
  end
  sub:add(f.dst_port, buffer(8, 2))
  sub:add(f.sender, buffer(12, 2))
  sub:add(f.src_port, buffer(14, 2))
  if kind >= 0x80 then
    sub:add(f.generation, buffer(5, 1))
    if kind ~= 0x83 then
      sub:add(f.mtu, buffer(6, 2))
      sub:add(f.hb, buffer(11, 1))
    end
    if kind == 0x82 then
      sub:add(f.generation_ack, buffer(10, 1))
      sub:add(f.my_cid, buffer(16, 2))
    end
    return buffer:len()
  end
  sub:add(f.dst_cid, buffer(10, 2))
  if kind == 0x06 then return buffer:len() end
  sub:add(f.msgid, buffer(5, 1))
  sub:add(f.seqno, buffer(6, 2))
  local rest = buffer:len() - 4 - length
  local to = nil
  if length >= 24 then
    to = buffer(20, 4):uint()
    sub:add(f.src, buffer(16, 4))
    sub:add(f.dst, buffer(20, 4))
    sub:add(f.payl_size, buffer(24, 4))
    -- Bytes after the message are padding.
    if kind == 0x01 then rest = math.min(rest, buffer(24, 4):uint()) end
  end
  if kind == 0x04 then
    sub:add(f.count_frag, buffer(28, 2))
    sub:add(f.count_patch, buffer(30, 2))
  end
  if rest > 0 then
    local payload = buffer(4 + length, rest)
    sub:add(f.payload, payload)
    if kind == 0x01 and to == 0 then
      rlnh.dissector(payload:tvb(), pinfo, tree)
    elseif length >= 24 and kind ~= 0x04 and to ~= 0 and rest >= 4 then
      -- (The payload of a PATCH_START is not the beginning of its message.)
      sub:add(r.signo, payload(0, 4))
    end
  end
  return buffer:len()
end

local operations = {
  [0x00] = "CONN_REQ", [0x01] = "CONN_ACK", [0x02] = "CONN_CLOSE", [0x03] = "DATA",
  -- Between two appliances.
  [0x10] = "CREDIT", [0x11] = "FINISH",
}
local riochannel = Proto("rio_cm", "RapidIO channel (rio_cm)")
local c = riochannel.fields
c.src_id = ProtoField.uint32("rio_cm.src_id", "Source id")
c.dst_id = ProtoField.uint32("rio_cm.dst_id", "Destination id")
c.src_mbox = ProtoField.uint8("rio_cm.src_mbox", "Source mailbox")
c.dst_mbox = ProtoField.uint8("rio_cm.dst_mbox", "Destination mailbox")
c.op = ProtoField.uint8("rio_cm.op", "Operation", base.HEX, operations)
c.dst_ch = ProtoField.uint16("rio_cm.dst_ch", "Destination channel")
c.src_ch = ProtoField.uint16("rio_cm.src_ch", "Source channel")
c.len = ProtoField.uint16("rio_cm.len", "Length with header")
c.sent = ProtoField.uint16("rio_cm.sent", "Messages sent in all")
c.word = ProtoField.uint16("rio_cm.word", "Offer (4A and credits), or messages that may be sent", base.HEX)
c.data = ProtoField.bytes("rio_cm.data", "Data")

function riochannel.dissector(buffer, pinfo, tree)
  if buffer:len() < 20 or buffer(10, 1):uint() ~= 0x55 then return 0 end
  local op = buffer(11, 1):uint()
  pinfo.cols.protocol = "rio_cm"
  pinfo.cols.info = string.format("%s %d > %d", operations[op] or "unknown", buffer(14, 2):uint(), buffer(12, 2):uint())
  local sub = tree:add(riochannel, buffer(), "rio_cm " .. (operations[op] or "unknown"))
  sub:add(c.src_id, buffer(0, 4))
  sub:add(c.dst_id, buffer(4, 4))
  sub:add(c.src_mbox, buffer(8, 1))
  sub:add(c.dst_mbox, buffer(9, 1))
  sub:add(c.op, buffer(11, 1))
  sub:add(c.dst_ch, buffer(12, 2))
  sub:add(c.src_ch, buffer(14, 2))
  sub:add(op == 0x11 and c.sent or c.len, buffer(16, 2))
  sub:add(c.word, buffer(18, 2))
  -- Bytes after the length are stale memory of the sender.
  local rest = math.min(buffer:len(), buffer(16, 2):uint()) - 20
  if op == 0x03 and rest > 0 then sub:add(c.data, buffer(20, rest)) end
  return buffer:len()
end

function rio.dissector(buffer, pinfo, tree)
  if buffer:len() < 8 then return 0 end
  local sub = tree:add(rio, buffer(0, 8))
  sub:add(rio.fields.source, buffer(0, 2))
  sub:add(rio.fields.destination, buffer(2, 2))
  sub:add(rio.fields.mailbox, buffer(4, 1))
  pinfo.cols.protocol = "RapidIO"
  if buffer:len() == 8 then return 8 end
  local message = buffer(8):tvb()
  if message:len() >= 2 and message(0, 2):uint() == 0x22cf then
    riocm.dissector(message, pinfo, tree)
  else
    riochannel.dissector(message, pinfo, tree)
  end
  return buffer:len()
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, rio)
