//! A virtual function of the 82576 (`igbvf` of Linux): as [`super::igb`], but what concerns the whole chip is asked of
//! the driver of the physical function.

use super::Error;
use super::chip::{self, Chip, Mode, Setup, Wanted};
use super::igb;
use super::mailbox::{ACCEPTED, Mailbox, REFUSED};
use super::registers as r;
use super::transmit::Format;
use crate::hal::Registers;
use core::time::Duration;

/// PCI device IDs of Intel's: virtual functions of the 82576.
pub const DEVICES: [u16; 2] = [0x10ca, 0x152d];

const MAILBOX: usize = 0x0c40;
const MEMORY: usize = 0x0800;

// Questions (Linux: igbvf/mbx.h).
const RESET: u32 = 1;
const LONGEST: u32 = 5;
const PROMISCUOUS: u32 = 6;
const ALL_MULTICAST: u32 = 2 << 16;

pub const LOST: &str = "the physical function's driver was reset, or has forgotten this virtual function: it is set up anew";

/// What is asked next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// While the physical function says that it resets us, or has just done so.
    AwaitReset,
    Mac,
    Longest,
    Multicast,
    Agreed,
}

/// The function.
pub struct IgbVf {
    mailbox: Mailbox,
    step: Step,
}

impl IgbVf {
    pub fn new() -> Self {
        IgbVf { mailbox: Mailbox::new(MAILBOX, MEMORY), step: Step::AwaitReset }
    }
}

impl Chip for IgbVf {
    fn registers(&self) -> usize {
        0x4000
    }

    fn format(&self) -> Format {
        Format::Advanced
    }

    fn most_mtu(&self) -> u16 {
        crate::ethernet::MOST_MTU
    }

    fn reset(&mut self, registers: &dyn Registers) {
        igb::set_vectors(registers, 0, Wanted::NOTHING);
        registers.write32(r::RXDCTL, 0);
        registers.write32(r::TXDCTL, 0);
        self.mailbox.clear();
        self.step = Step::AwaitReset;
        registers.write32(r::CTRL, registers.read32(r::CTRL) | r::CTRL_RESET);
    }

    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        _: Duration,
    ) -> Result<Option<[u8; 6]>, Error> {
        if self.step == Step::AwaitReset {
            // As Linux does (`e1000_reset_hw_vf`): the bits are gone once somebody has read them, and of a reset that we
            // asked for by ourselves they tell nothing.
            if self.mailbox.was_reset(registers)? {
                return Ok(None);
            }
            self.step = Step::Mac;
        }
        let Some([kind, low, high]) = self.mailbox.ask(registers, [RESET, 0, 0])? else {
            return Ok(None);
        };
        if kind & REFUSED != 0 {
            return Err(Error::Refused("a reset"));
        }
        let mac = chip::to_address(low, high);
        if !crate::ethernet::is_station(mac) {
            return Err(Error::NoMac);
        }
        self.step = Step::Longest;
        Ok(Some(mac))
    }

    fn agree(&mut self, registers: &dyn Registers, longest: usize) -> Result<bool, Error> {
        loop {
            let (question, what, next) = match self.step {
                // With FCS.
                Step::Longest => {
                    ([LONGEST, longest as u32 + 4, 0], "frames of that length", Step::Multicast)
                }
                Step::Multicast => ([PROMISCUOUS | ALL_MULTICAST, 0, 0], "multicast", Step::Agreed),
                _ => return Ok(true),
            };
            match self.mailbox.ask(registers, question)? {
                None => return Ok(false),
                Some([kind, ..]) if kind & ACCEPTED == 0 => return Err(Error::Refused(what)),
                Some(_) => self.step = next,
            }
        }
    }

    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>) {
        if setup.mode == Mode::Msix {
            igb::start_vectors(registers, 1);
        }
        igb::enable_queues(registers, setup);
    }

    fn set_interrupts(&self, registers: &dyn Registers, _: Mode, queue: usize, wanted: Wanted) {
        igb::set_vectors(registers, queue, wanted);
    }

    fn is_lost(&mut self, registers: &dyn Registers) -> bool {
        let reset = self.mailbox.was_reset(registers) == Ok(true);
        reset || self.mailbox.was_forgotten(registers) == Ok(true)
    }

    // It counts none.
    fn missed(&self, _: &dyn Registers) -> u64 {
        0
    }

    fn why_lost(&self) -> &'static str {
        LOST
    }
}
