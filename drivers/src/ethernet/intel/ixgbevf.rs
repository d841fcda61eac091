//! A virtual function of the 82599 (`ixgbevf` of Linux): as [`super::ixgbe`], but settings of the whole chip are
//! requested from the physical function's driver, by interface 1.1 or newer, which supports jumbo frames.

use super::Error;
use super::chip::{Causes, Chip, Mode, Model, Setup};
use super::igbvf::NEEDS_SETUP;
use super::ixgbe::{self, Vectors};
use super::mailbox::{ACCEPTED, Mailbox};
use super::registers as r;
use super::transmit::Format;
use crate::hal::Registers;
use core::time::Duration;

/// Intel's PCI device IDs: virtual functions of the 82599.
pub const DEVICES: [u16; 1] = [0x10ed];

const MAILBOX: usize = 0x02fc;
const MEMORY: usize = 0x0200;
const LINKS: usize = 0x0010;
const TRANSMIT: usize = 0x2000;
const VECTORS: Vectors = Vectors {
    cause: 0x0100,
    clears: 0x0110,
    set: 0x0108,
    clear: 0x010c,
    masks: 0x0114,
    queues: 0x0120,
    throttle: 0x0820,
};

// Requests (Linux: ixgbevf/mbx.h).
const GROUPS: u32 = 3;
const LONGEST: u32 = 5;
const INTERFACE: u32 = 8;
const MODE: u32 = 0x0c;

/// Number of interface 1.4; 1.3, 1.2 and 1.1 are the numbers below.
const NEWEST: u32 = 5;
/// Number of interface 1.2, the first with multicast modes.
const WITH_MODES: u32 = 3;
/// Number of interface 1.1.
const OLDEST: u32 = 2;
/// Multicast mode: receive all multicast.
const ALL: u32 = 2;
/// Hash of the group of all nodes (33:33:00:00:00:01): bits 47 to 36 of an address.
const ALL_NODES: u32 = 0x010;

/// The next request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// None while the physical function reports a reset of this one.
    AwaitReset,
    Mac,
    Interface(u32),
    Longest,
    Mode,
    Groups,
    Agreed,
}

/// The function.
pub struct IxgbeVf {
    mailbox: Mailbox,
    step: Step,
    interface: u32,
    /// Hash of the solicited-node multicast group of the own address.
    group: u32,
}

impl Default for IxgbeVf {
    fn default() -> Self {
        let mailbox = Mailbox::new(MAILBOX, MEMORY);
        IxgbeVf { mailbox, step: Step::AwaitReset, interface: 0, group: 0 }
    }
}

impl Model for IxgbeVf {
    const IS_VIRTUAL: bool = true;
}

impl Chip for IxgbeVf {
    fn registers(&self) -> usize {
        0x4000
    }

    fn format(&self) -> Format {
        Format::Switched
    }

    fn tails(&self, queue: usize) -> [usize; 2] {
        ixgbe::tails(TRANSMIT, queue)
    }

    fn damage(&self) -> u32 {
        ixgbe::DAMAGE
    }

    fn link(&self, registers: &dyn Registers) -> Option<bool> {
        ixgbe::link(registers, LINKS)
    }

    fn most_mtu(&self) -> u16 {
        crate::ethernet::MOST_MTU
    }

    fn reset(&mut self, registers: &dyn Registers) {
        VECTORS.apply(registers, 0, Causes::NONE);
        ixgbe::stop_queues(registers, TRANSMIT, 1);
        self.mailbox.clear();
        self.step = Step::AwaitReset;
        registers.write32(r::CTRL, r::CTRL_RESET);
    }

    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        _: Duration,
    ) -> Result<Option<[u8; 6]>, Error> {
        if self.step == Step::AwaitReset {
            // As in igbvf: reading clears the bits.
            if self.mailbox.was_reset(registers)? {
                return Ok(None);
            }
            self.step = Step::Mac;
        }
        // The reset is done even if the function has no address.
        let refused = Error::Unnamed;
        let Some(mac) = self.mailbox.request_reset(registers, refused)? else { return Ok(None) };
        let [.., a, b] = mac;
        self.group = u32::from(a >> 4) | u32::from(b) << 4;
        self.step = Step::Interface(NEWEST);
        Ok(Some(mac))
    }

    fn agree(&mut self, registers: &dyn Registers, longest: usize) -> Result<bool, Error> {
        loop {
            let request = match self.step {
                Step::Interface(number) => [INTERFACE, number, 0],
                // The length counts the FCS and no tag, which are both 4 bytes long.
                Step::Longest => [LONGEST, longest as u32, 0],
                Step::Mode => [MODE, ALL, 0],
                Step::Groups => [GROUPS | 2 << 16, self.group << 16 | ALL_NODES, 0],
                _ => return Ok(true),
            };
            let Some([kind, answer, _]) = self.mailbox.request(registers, request)? else {
                return Ok(false);
            };
            self.step = match (self.step, kind & ACCEPTED != 0) {
                (Step::Interface(number), true) => {
                    self.interface = number;
                    Step::Longest
                }
                (Step::Interface(number), false) if number > OLDEST => Step::Interface(number - 1),
                (Step::Interface(_), false) => return Err(Error::Refused("interface 1.1")),
                (Step::Longest, false) => return Err(Error::Refused("frames of that length")),
                (Step::Longest, true) if self.interface >= WITH_MODES => Step::Mode,
                // A function that is not trusted receives only the groups that it requests.
                (Step::Mode, true) if answer >= ALL => Step::Agreed,
                (Step::Longest | Step::Mode, _) => Step::Groups,
                (_, true) => Step::Agreed,
                (_, false) => return Err(Error::Refused("multicast")),
            };
        }
    }

    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>) {
        VECTORS.start(registers, setup.mode == Mode::Msix, 1);
        ixgbe::start_queues(registers, TRANSMIT, setup);
    }

    fn set_interrupts(&self, registers: &dyn Registers, _: Mode, queue: usize, causes: Causes) {
        VECTORS.apply(registers, queue, causes);
    }

    fn needs_setup(&mut self, registers: &dyn Registers) -> bool {
        let reset = self.mailbox.was_reset(registers) == Ok(true);
        reset || self.mailbox.was_dropped(registers) == Ok(true)
    }

    // The function has no such counter.
    fn missed(&self, _: &dyn Registers) -> u64 {
        0
    }

    fn setup_reason(&self) -> &'static str {
        NEEDS_SETUP
    }
}
