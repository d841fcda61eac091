//! Port registers, accessed by commands.

use super::Mlx5;
use super::command::{BAD_OPERATION, BAD_PARAMETER, Reply, refuse};
use super::fields::{be16, be32, put16, put32};

const HOST_ENDIANNESS: u16 = 0x7004;
const MTU: u16 = 0x5003;
const SPEED: u16 = 0x5004;
const STATUS: u16 = 0x5006;
const COUNTERS: u16 = 0x5008;
const FLOW_CONTROL: u16 = 0x5007;
const TRUST: u16 = 0x4002;
/// Ethernet header, VLAN tag and FCS, which the port's MTU includes.
const OVERHEAD: u16 = 22;
/// Supported speed: 25GBASE-CR.
const SPEEDS: u32 = 1 << 28;

impl Mlx5 {
    /// Reports whether congestion control is enabled, and congestion counters of 0.
    pub(super) fn congestion_command(&mut self, opcode: u16, input: &[u8]) -> Reply {
        let Some(marks) = self.settings.marks else {
            return refuse(BAD_OPERATION, "congestion control is not reported");
        };
        if opcode == 0x826 {
            return Ok(vec![0; 0x110]);
        }
        let (priority, node) = (input[11] >> 4, input[11] & 0xf);
        if priority > 7 || !(1..=2).contains(&node) {
            return refuse(BAD_PARAMETER, format!("priority {priority}, node {node}"));
        }
        let mut output = vec![0; 16];
        output[12] = (marks >> priority & 1) << 7;
        Ok(output)
    }

    pub(super) fn access_register(&mut self, input: &[u8], room: usize) -> Reply {
        let (register, read) = (be16(input, 10), be16(input, 6));
        if read > 1 {
            return refuse(BAD_PARAMETER, format!("operation {read}"));
        }
        let mut data = input[16..].to_vec();
        if data.len() + 16 > room {
            return refuse(0x51, format!("room for {room:#x} bytes"));
        }
        data.resize(data.len().max(0x40), 0);
        match register {
            MTU => {
                let most = self.settings.mtu + OVERHEAD;
                if read == 0 {
                    let wanted = be16(&data, 8);
                    if wanted > most {
                        return refuse(BAD_PARAMETER, format!("an MTU of {wanted}"));
                    }
                    self.state.registers.insert(register, data.clone());
                }
                let written = self.state.registers.get(&register);
                let present = written.map_or(1500 + OVERHEAD, |data| be16(data, 8));
                put16(&mut data, 4, most);
                put16(&mut data, 8, present);
                put16(&mut data, 12, present);
            }
            SPEED => [0x0c, 0x18, 0x24].into_iter().for_each(|at| put32(&mut data, at, SPEEDS)),
            // Administrative and operational status.
            STATUS => (data[2], data[3]) = (1, if self.link { 1 } else { 2 }),
            HOST_ENDIANNESS if self.is_virtual() => {
                return refuse(BAD_PARAMETER, "a virtual function has no byte order");
            }
            HOST_ENDIANNESS if read == 0 && be32(&data, 0) != 0 => {
                return refuse(BAD_PARAMETER, "only little-endian hosts are modelled");
            }
            HOST_ENDIANNESS | COUNTERS => {}
            FLOW_CONTROL if read == 1 => {
                data[9] = self.settings.flow_control;
                data[13] = self.settings.flow_control;
            }
            FLOW_CONTROL => {}
            // Priorities are trusted by DSCP.
            TRUST if read == 1 => data[7] = 2,
            // Capabilities of further registers (none), of the card's switch, of the port's modules: all 0.
            0x5001 | 0x5002 | 0x5031 | 0x6001 | 0x9014 | 0xc00e => {}
            _ => return refuse(BAD_PARAMETER, format!("register {register:#x}")),
        }
        let mut output = vec![0; 16];
        output.extend_from_slice(&data);
        output.truncate(room);
        Ok(output)
    }
}
