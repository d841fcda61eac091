//! Capabilities of the function.

use super::command::{BAD_PARAMETER, Reply, done, refuse};
use super::fields::{be16, get, set};
use super::{Config, Fault, Mlx5};
use std::collections::BTreeMap;

/// Bytes of a type's capabilities.
const SIZE: usize = 0x1000;
/// Capability types.
const GENERAL: u16 = 0;
const ETHERNET: u16 = 1;
const ATOMIC: u16 = 3;
const ROCE: u16 = 4;
const FLOW_TABLES: u16 = 7;
const SWITCH_FLOW_TABLES: u16 = 8;
const SWITCH: u16 = 9;

/// Most queue pairs, as log2 (`log_max_qp`).
pub const LOG_PAIRS: u32 = 17;
/// Entries of the switch's table of addresses, as log2 (`log_max_l2_table`).
pub const LOG_SWITCH_TABLE: u32 = 5;

/// A field: its first bit, its width in bits, and its value.
type Field = (usize, usize, u64);

fn capabilities(fields: &[Field]) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    fields.iter().for_each(|&(bit, width, value)| set(&mut bytes, bit, width, value));
    bytes
}

/// Capabilities by type.
pub fn all(settings: &Config, faults: &[Fault]) -> BTreeMap<u16, Vec<u8>> {
    let roce = u64::from(settings.roce);
    let manages = u64::from(settings.device & 1 == 1 && settings.manages_switch);
    let mut all = BTreeMap::from([
        (GENERAL, capabilities(&general(roce, settings.marks.is_some(), manages))),
        // Nothing of the switch beyond its table of addresses.
        (SWITCH_FLOW_TABLES, capabilities(&[])),
        (SWITCH, capabilities(&[])),
        (ETHERNET, capabilities(&ethernet())),
        (ATOMIC, capabilities(&[(0x46, 1, 1), (0x90, 16, 3), (0xb0, 16, 8)])),
        (ROCE, capabilities(&roce_fields())),
        (FLOW_TABLES, capabilities(&flow_tables())),
    ]);
    for fault in faults {
        if let Fault::Lacks(kind, bit, width) = *fault
            && let Some(bytes) = all.get_mut(&kind)
        {
            set(bytes, bit, width, 0);
        }
    }
    all
}

fn general(roce: u64, marks: bool, manages_switch: u64) -> Vec<Field> {
    let (most, entries) = (LOG_PAIRS.into(), LOG_SWITCH_TABLE.into());
    let objects = [
        (0x80, 8, 15),       // log_max_srq_sz
        (0x88, 8, 15),       // log_max_qp_sz
        (0x9b, 5, most),     // log_max_qp
        (0xab, 5, 16),       // log_max_srq
        (0xc8, 8, 22),       // log_max_cq_sz
        (0xdb, 5, 16),       // log_max_cq
        (0xe0, 8, 22),       // log_max_eq_sz
        (0xea, 6, 20),       // log_max_mkey
        (0xfc, 4, 6),        // log_max_eq
        (0x100, 8, 4),       // max_indirection
        (0x108, 1, 1),       // fixed_buffer_size
        (0x109, 7, 40),      // log_max_mrw_sz
        (0x11a, 6, 16),      // log_max_klm_list_size
        (0x14a, 6, 4),       // log_max_ra_req_qp
        (0x15a, 6, 4),       // log_max_ra_res_qp
        (0x170, 16, 1),      // gid_table_size
        (0x186, 10, 64),     // max_qp_cnt
        (0x323, 5, 16),      // log_max_transport_domain
        (0x32b, 5, 16),      // log_max_pd
        (0x363, 5, 16),      // log_max_rq
        (0x36b, 5, 16),      // log_max_sq
        (0x373, 5, 16),      // log_max_tir
        (0x37b, 5, 16),      // log_max_tis
        (0x380, 1, 1),       // basic_cyclic_rcv_wqe
        (0x383, 5, 16),      // log_max_rmp
        (0x38b, 5, 16),      // log_max_rqt
        (0x393, 5, 11),      // log_max_rqt_size
        (0x39b, 5, 3),       // log_max_tis_per_sq
        (0x3a3, 5, 13),      // log_max_stride_sz_rq
        (0x3ab, 5, 4),       // log_min_stride_sz_rq
        (0x3b3, 5, 10),      // log_max_stride_sz_sq
        (0x3bb, 5, 6),       // log_min_stride_sz_sq
        (0x3db, 5, 15),      // log_max_wq_sz
        (0x3e1, 1, 1),       // disable_local_lb_uc
        (0x3e2, 1, 1),       // disable_local_lb_mc
        (0x3f3, 5, 8),       // log_max_current_mc_list
        (0x3fb, 5, 7),       // log_max_current_uc_list
        (0x470, 16, 32),     // max_num_eqs
        (0x483, 5, entries), // log_max_l2_table
    ];
    let features = [
        (0x161, 1, marks.into()),   // cc_query_allowed
        (0x1a0, 1, manages_switch), // vport_group_manager
        (0x1a6, 1, 1),              // nic_flow_table
        (0x1a7, 1, manages_switch), // eswitch_manager
        (0x1ab, 5, 16),             // local_ca_ack_delay
        (0x1b6, 2, 1),              // port_type: Ethernet
        (0x1b8, 8, 1),              // num_ports
        (0x1c3, 5, 30),             // log_max_msg
        (0x1cc, 4, 8),              // max_tc
        (0x1fc, 4, 1),              // cqe_version
        (0x200, 1, 1),              // compact_address_vector
        (0x21c, 1, 1),              // eth_net_offloads
        (0x21d, 1, roce),           // roce
        (0x21e, 1, roce),           // atomic
        (0x222, 1, 1),              // cq_moderation
        (0x22b, 1, 1),              // cq_period_start_from_cqe
        (0x231, 1, 1),              // imaicl
        (0x23c, 1, roce),           // xrc
        (0x23d, 1, roce),           // ud
        (0x23f, 1, roce),           // rc
        (0x24a, 6, 5),              // uar_sz: 32 MiB
        (0x258, 8, 12),             // log_pg_sz
        (0x260, 1, 1),              // bf
        (0x261, 1, 1),              // driver_version
        (0x26b, 5, 9),              // log_bf_reg_size
        (0x290, 16, 1024),          // max_wqe_sz_sq
        (0x2b0, 16, 512),           // max_wqe_sz_rq
        (0x2d0, 16, 512),           // max_wqe_sz_sq_dc
        (0x4c0, 32, 0),             // device_frequency_mhz
        (0x4e0, 32, 1_000_000),     // device_frequency_khz
    ];
    [&objects[..], &features].concat()
}

fn ethernet() -> Vec<Field> {
    // csum_cap, vlan_cap, self_lb_en_modifiable, max_lso_cap, wqe_inline_mode (from the port), rss_ind_tbl_cap.
    vec![(0, 1, 1), (1, 1, 1), (8, 1, 1), (0xb, 5, 16), (0x12, 2, 1), (0x14, 4, 8)]
}

fn roce_fields() -> Vec<Field> {
    vec![
        (0x8c, 4, 6),       // l3_type: IPv4, IPv6
        (0x98, 8, 4),       // roce_version: 2
        (0xb0, 16, 4791),   // r_roce_dest_udp_port
        (0xc0, 16, 0xffff), // r_roce_max_src_udp_port
        (0xd0, 16, 0xc000), // r_roce_min_src_udp_port
        (0xf0, 16, super::vport::GIDS.into()),
    ]
}

fn flow_tables() -> Vec<Field> {
    // For receive: ft_support, flow_modify_en, modify_root, identified_miss_table_mode, flow_table_modify,
    // log_max_ft_size, max_ft_level, log_max_ft_num, log_max_destination, log_max_flow.
    let base = 0x200;
    let mut fields: Vec<Field> = [0, 3, 4, 5, 6].map(|bit| (base + bit, 1, 1)).into();
    fields.extend([
        (base + 0x22, 6, 16),
        (base + 0x38, 8, 64),
        (base + 0x78, 8, 20),
        (base + 0x98, 8, 8),
        (base + 0xb8, 8, 16),
    ]);
    // Every outer field can be matched, with any mask.
    for first in [0x100, 0x180] {
        fields.extend((0..4).map(|word| (base + first + 32 * word, 32, 0xffff_ffff)));
    }
    fields
}

impl Mlx5 {
    /// The driver's choice of `log_max_qp`.
    pub(super) fn log_pairs(&self) -> u32 {
        self.state.capabilities.get(&GENERAL).map_or(0, |bytes| get(bytes, 0x9b, 5) as u32)
    }

    pub(super) fn query_capabilities(&mut self, input: &[u8]) -> Reply {
        let operation = be16(input, 6);
        let (kind, most) = (operation >> 1, operation & 1 == 0);
        let could = all(&self.settings, &self.faults);
        let bytes = if most { could.get(&kind) } else { self.state.capabilities.get(&kind) };
        // Linux also queries types that the function does not have.
        let Some(bytes) = bytes else { return refuse(BAD_PARAMETER, "") };
        let mut output = vec![0; 16];
        output.extend_from_slice(bytes);
        Ok(output)
    }

    /// Sets the driver's choice of a type's capabilities.
    pub(super) fn set_capabilities(&mut self, input: &[u8]) -> Reply {
        let kind = be16(input, 6) >> 1;
        let Some(bytes) = self.state.capabilities.get_mut(&kind) else {
            return refuse(BAD_PARAMETER, format!("type {kind:#x}"));
        };
        let wanted = &input[16..];
        if kind == ATOMIC {
            // Linux sends the byte order only: all other fields are read-only.
            set(bytes, 0x40, 2, get(wanted, 0x40, 2));
            return done();
        }
        bytes.copy_from_slice(&wanted[..SIZE]);
        done()
    }

    pub(super) fn query_adapter(&mut self) -> Reply {
        let mut output = vec![0; 0x110];
        output[0x2e..0x30].copy_from_slice(&[0x15, 0xb3]);
        output[0x100..0x10d].copy_from_slice(b"ISTHMUS_MODEL");
        Ok(output)
    }
}
