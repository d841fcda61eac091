-- usNIC, the reliable datagrams of Open MPI's btl/usnic, for Wireshark and tshark:
--
--   tshark -X lua_script:usnic.lua -o usnic.ports:7001-7003 -o usnic.layout:4 -r FILE
--
-- A packet shows neither that its UDP port is usNIC's nor whether Open MPI 4 or 5 sent it: both are preferences.
-- PINGs of the connectivity checker are recognised by their magic at any port. All fields are little-endian, except
-- IPv4 addresses. The tables of fields are in net/usnic/src/wire.

local kinds = { [1] = "ACK", [2] = "FRAG", [3] = "CHUNK" }
local pings = { [17] = "PING", [18] = "PING ACK" }

local usnic = Proto("usnic", "Open MPI usNIC")
local f = usnic.fields
f.sender = ProtoField.uint64("usnic.sender", "Sender", base.HEX)
f.job = ProtoField.uint32("usnic.sender.job", "Job")
f.rank = ProtoField.uint32("usnic.sender.rank", "Rank")
f.seq = ProtoField.uint16("usnic.seq", "Sequence number")
f.ack_seq = ProtoField.uint16("usnic.ack_seq", "Acknowledged up to")
f.len = ProtoField.uint16("usnic.len", "Bytes of payload")
f.put_addr = ProtoField.uint64("usnic.put_addr", "PUT address", base.HEX)
f.type = ProtoField.uint8("usnic.type", "Type", base.DEC, kinds)
f.ack_present = ProtoField.uint8("usnic.ack_present", "Has an ACK")
f.tag = ProtoField.uint8("usnic.tag", "Tag")
f.frag_id = ProtoField.uint32("usnic.frag_id", "Fragment")
f.frag_size = ProtoField.uint32("usnic.frag_size", "Bytes of the fragment")
f.frag_offset = ProtoField.uint32("usnic.frag_offset", "Offset in the fragment")
f.payload = ProtoField.bytes("usnic.payload", "Payload")
f.ping_type = ProtoField.uint8("usnic.ping.type", "Type", base.DEC, pings)
f.ping_address = ProtoField.ipv4("usnic.ping.address", "Address of the sender of the PING")
f.ping_port = ProtoField.uint32("usnic.ping.port", "UDP port of the sender of the PING")
f.ping_magic = ProtoField.uint64("usnic.ping.magic", "Magic", base.HEX)
f.ping_major = ProtoField.uint32("usnic.ping.major", "Major version of Open MPI")
f.ping_minor = ProtoField.uint32("usnic.ping.minor", "Minor version")
f.ping_size = ProtoField.uint32("usnic.ping.size", "Bytes of the PING")
local malformed = ProtoExpert.new("usnic.malformed", "Shorter than its header says, or of unknown type",
  expert.group.MALFORMED, expert.severity.ERROR)
usnic.experts = { malformed }

local layouts = { { 1, "4", 4 }, { 2, "5", 5 } }
usnic.prefs.ports = Pref.range("UDP ports", "", "UDP ports of data, acknowledgements and PINGs", 65535)
usnic.prefs.layout = Pref.enum("Layout", 4, "Layout of packets, by the version of Open MPI", layouts, true)

-- Offsets of the fields of a header, and of the further fields of a CHUNK.
local places = {
  [4] = { type = 24, ack_present = 25, tag = 26, header = 32, frag = 32, chunk = 48 },
  [5] = { type = 14, ack_present = 15, tag = 24, header = 25, frag = 28, chunk = 40 },
}

local magics = { ["e5113ae6bc2f9e9a"] = 17, ["ceaa68f3685c7360"] = 18 }

-- 17 or 18 if the datagram is a PING or its ACK.
local function ping_of(buffer)
  if buffer:len() < 40 then return nil end
  local kind = magics[tostring(buffer(16, 8):bytes()):lower()]
  if kind == nil or buffer(0, 1):uint() ~= kind then return nil end
  return kind
end

local function dissect_ping(kind, buffer, pinfo, tree)
  pinfo.cols.protocol = "usNIC"
  local size = buffer(32, 4):le_uint()
  pinfo.cols.info = string.format("%s, %d bytes, Open MPI %d.%d", pings[kind], size,
    buffer(24, 4):le_uint(), buffer(28, 4):le_uint())
  local sub = tree:add(usnic, buffer(), "usNIC " .. pings[kind])
  sub:add(f.ping_type, buffer(0, 1))
  sub:add(f.ping_address, buffer(4, 4))
  sub:add_le(f.ping_port, buffer(8, 4))
  sub:add_le(f.ping_magic, buffer(16, 8))
  sub:add_le(f.ping_major, buffer(24, 4))
  sub:add_le(f.ping_minor, buffer(28, 4))
  sub:add_le(f.ping_size, buffer(32, 4))
  return buffer:len()
end

function usnic.dissector(buffer, pinfo, tree)
  local ping = ping_of(buffer)
  if ping then return dissect_ping(ping, buffer, pinfo, tree) end
  pinfo.cols.protocol = "usNIC"
  local at = places[usnic.prefs.layout]
  if buffer:len() < at.header then
    tree:add(usnic, buffer(), "usNIC, too short"):add_proto_expert_info(malformed)
    return buffer:len()
  end
  local kind = buffer(at.type, 1):uint()
  local length = buffer(12, 2):le_uint()
  local header = at.header
  if kind == 3 then header = at.chunk end
  local name = kinds[kind] or "unknown type " .. kind
  local job, rank = buffer(4, 4):le_uint(), buffer(0, 4):le_uint()
  local sub = tree:add(usnic, buffer(), string.format("usNIC %s of %d.%d", name, job, rank))
  sub:add_le(f.sender, buffer(0, 8))
  sub:add_le(f.rank, buffer(0, 4))
  sub:add_le(f.job, buffer(4, 4))
  sub:add_le(f.seq, buffer(8, 2))
  sub:add_le(f.ack_seq, buffer(10, 2))
  sub:add_le(f.len, buffer(12, 2))
  sub:add_le(f.put_addr, buffer(16, 8))
  sub:add(f.type, buffer(at.type, 1))
  sub:add(f.ack_present, buffer(at.ack_present, 1))
  sub:add(f.tag, buffer(at.tag, 1))
  local info = string.format("%s %d.%d", name, job, rank)
  if kind ~= 1 then info = info .. string.format(" seq=%d len=%d", buffer(8, 2):le_uint(), length) end
  if kind == 1 or buffer(at.ack_present, 1):uint() ~= 0 then
    info = info .. string.format(" ack=%d", buffer(10, 2):le_uint())
  end
  if kinds[kind] == nil or buffer:reported_len() < header + length then
    sub:add_proto_expert_info(malformed)
    pinfo.cols.info = info .. " malformed"
    return buffer:len()
  end
  -- A capture may have cut the packet.
  if kind == 3 and buffer:len() >= header then
    sub:add_le(f.frag_id, buffer(at.frag, 4))
    sub:add_le(f.frag_size, buffer(at.frag + 4, 4))
    sub:add_le(f.frag_offset, buffer(at.frag + 8, 4))
    info = info .. string.format(" fragment %d, %d of %d", buffer(at.frag, 4):le_uint(),
      buffer(at.frag + 8, 4):le_uint(), buffer(at.frag + 4, 4):le_uint())
  end
  if buffer(16, 8):le_uint64() ~= UInt64(0) then info = info .. " PUT" end
  pinfo.cols.info = info
  if length > 0 and buffer:len() >= header + length then
    sub:add(f.payload, buffer(header, length))
  end
  return buffer:len()
end

local function dissect_by_magic(buffer, pinfo, tree)
  local ping = ping_of(buffer)
  if ping == nil then return false end
  dissect_ping(ping, buffer, pinfo, tree)
  return true
end
usnic:register_heuristic("udp", dissect_by_magic)

local table = DissectorTable.get("udp.port")
table:add_for_decode_as(usnic)
local ports = nil
function usnic.prefs_changed()
  if ports ~= nil and ports ~= "" then table:remove(ports, usnic) end
  ports = usnic.prefs.ports
  if ports ~= nil and ports ~= "" then table:add(ports, usnic) end
end
