//! Filters that steer UDP flows to the second receive queue (Linux: `struct filter`, `vnic_dev_classifier`).

use super::life::Job;
use super::port::EnicPort;
use super::receive::Receiver;
use super::registers;
use crate::hal::{Arena, Severity, UdpFlow, Window};
use alloc::vec::Vec;

/// Maximum number of flows.
const MOST: usize = 8;
/// Bytes of a filter's description.
pub const BYTES: usize = 48;

/// Type and length of the filter and, behind it, of the action.
const FILTER: [u32; 2] = [0, 24];
const ACTION: [u32; 2] = [1, 8];
/// A filter by five fields, of which three are used: protocol, destination, destination port.
const IPV4_5TUPLE: u32 = 1;
const FIELDS: u32 = 1 | 4 | 16;
const UDP: u32 = 0;
/// Action: steer to a receive queue.
const STEER: u32 = 0;

/// The second receive queue and its completion queue.
pub const QUEUE: u32 = 1;
pub const COMPLETION: u32 = 2;

const REFUSED: &str = "the network card's firmware refuses a filter: datagrams to its port are received with all other \
     traffic";

/// State of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// To be added.
    Wanted,
    /// To be deleted, but the device has not returned its number yet.
    Recalled,
    /// Active, with this number.
    Set(u64),
    /// Active, with this number, and to be deleted.
    Unwanted(u64),
    Refused,
}

/// Steered flows, and their receive queue.
pub struct Steered {
    pub receiver: Receiver,
    pub flows: Vec<(UdpFlow, Filter)>,
}

/// Writes the description of a flow's filter. All fields are little-endian, including addresses and ports.
pub fn describe(memory: &Window, flow: UdpFlow) {
    let address = u32::from_be_bytes(flow.address);
    let port = u32::from(flow.port) << 16;
    let words = [IPV4_5TUPLE, FIELDS, UDP, 0, address, port];
    let all = FILTER.into_iter().chain(words).chain(ACTION).chain([STEER, QUEUE]);
    all.enumerate().for_each(|(n, word)| memory.store32(4 * n, word));
}

impl EnicPort {
    /// Opens the second receive queue; false if the device has none, or there is no memory.
    fn open_second(&mut self, arena: &mut Arena) -> bool {
        let queues = self.receive.len() / registers::BLOCK;
        let completions = self.completion.len() / registers::BLOCK;
        if queues <= QUEUE as usize || completions <= COMPLETION as usize {
            return false;
        }
        let mut taken = Vec::new();
        let made = Receiver::new(arena, QUEUE as usize, self.mtu, self.receive_entries, &mut taken);
        let Ok(mut receiver) = made else {
            taken.into_iter().for_each(|window| arena.free(window));
            return false;
        };
        if self.life.is_live() {
            receiver.start(&*self.receive, &*self.completion, COMPLETION);
        }
        self.memory.append(&mut taken);
        self.steered = Some(Steered { receiver, flows: Vec::with_capacity(MOST) });
        true
    }

    /// See `Port::steer`.
    pub(super) fn add_flow(&mut self, flow: UdpFlow, arena: &mut Arena) -> bool {
        if self.life.error().is_some() || self.steered.is_none() && !self.open_second(arena) {
            return false;
        }
        let Some(steered) = &mut self.steered else { return false };
        if let Some(known) = steered.flows.iter_mut().find(|(known, _)| *known == flow) {
            known.1 = match known.1 {
                Filter::Unwanted(id) => Filter::Set(id),
                Filter::Recalled => Filter::Wanted,
                other => other,
            };
            return true;
        }
        if steered.flows.len() == MOST {
            return false;
        }
        steered.flows.push((flow, Filter::Wanted));
        self.work_on_jobs();
        true
    }

    /// See `Port::unsteer`.
    pub(super) fn remove_flow(&mut self, flow: UdpFlow) {
        let Some(steered) = &mut self.steered else { return };
        let is_posted = self.job == Some(Job::Add(flow));
        steered.flows.retain_mut(|(known, filter)| match *filter {
            _ if *known != flow => true,
            Filter::Set(id) => {
                *filter = Filter::Unwanted(id);
                true
            }
            Filter::Wanted if is_posted => {
                *filter = Filter::Recalled;
                true
            }
            Filter::Recalled | Filter::Unwanted(_) => true,
            Filter::Wanted | Filter::Refused => false,
        });
        self.work_on_jobs();
    }

    /// Prepares all filters to be added again: after a reset the device has none.
    pub(super) fn reset_filters(&mut self) {
        let Some(steered) = &mut self.steered else { return };
        let is_wanted = |filter| !matches!(filter, Filter::Unwanted(_) | Filter::Recalled);
        steered.flows.retain(|&(_, filter)| is_wanted(filter));
        steered.flows.iter_mut().for_each(|(_, filter)| *filter = Filter::Wanted);
    }

    /// Notes that the device has added a filter with this number, or has refused it (None).
    pub(super) fn filter_is(&mut self, flow: UdpFlow, id: Option<u64>) {
        if id.is_none() {
            self.reset_log.note(Severity::Warning, REFUSED);
        }
        let Some(steered) = &mut self.steered else { return };
        steered.flows.retain_mut(|(known, filter)| {
            if *known == flow {
                *filter = match (*filter, id) {
                    (Filter::Recalled, Some(id)) => Filter::Unwanted(id),
                    (_, Some(id)) => Filter::Set(id),
                    (Filter::Recalled, None) => return false,
                    (_, None) => Filter::Refused,
                };
            }
            true
        });
    }
}
