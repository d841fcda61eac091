//! A virtual function of the 82576 (`igbvf` of Linux): as [`super::igb`], but settings of the whole chip are requested
//! from the physical function's driver.

use super::Error;
use super::chip::{Causes, Chip, Mode, Model, Setup};
use super::igb;
use super::mailbox::{ACCEPTED, Mailbox};
use super::registers as r;
use super::transmit::Format;
use crate::hal::Registers;
use core::time::Duration;

/// Intel's PCI device IDs: virtual functions of the 82576.
pub const DEVICES: [u16; 2] = [0x10ca, 0x152d];

const MAILBOX: usize = 0x0c40;
const MEMORY: usize = 0x0800;

// Requests (Linux: igbvf/mbx.h).
const LONGEST: u32 = 5;
const PROMISCUOUS: u32 = 6;
const ALL_MULTICAST: u32 = 2 << 16;

pub const NEEDS_SETUP: &str =
    "the physical function's driver has reset or dropped this virtual function: it is set up anew";

/// The next request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// None while the physical function reports a reset of this one.
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

impl Default for IgbVf {
    fn default() -> Self {
        IgbVf { mailbox: Mailbox::new(MAILBOX, MEMORY), step: Step::AwaitReset }
    }
}

impl Model for IgbVf {
    const IS_VIRTUAL: bool = true;
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
        igb::set_vectors(registers, 0, Causes::NONE);
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
            // As in Linux (`e1000_reset_hw_vf`): reading clears the bits, and they do not report a reset that this
            // driver has requested.
            if self.mailbox.was_reset(registers)? {
                return Ok(None);
            }
            self.step = Step::Mac;
        }
        let refused = Error::Refused("a reset");
        let Some(mac) = self.mailbox.request_reset(registers, refused)? else { return Ok(None) };
        self.step = Step::Longest;
        Ok(Some(mac))
    }

    fn agree(&mut self, registers: &dyn Registers, longest: usize) -> Result<bool, Error> {
        loop {
            let (request, what, next) = match self.step {
                // With FCS.
                Step::Longest => {
                    ([LONGEST, longest as u32 + 4, 0], "frames of that length", Step::Multicast)
                }
                Step::Multicast => ([PROMISCUOUS | ALL_MULTICAST, 0, 0], "multicast", Step::Agreed),
                _ => return Ok(true),
            };
            match self.mailbox.request(registers, request)? {
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

    fn set_interrupts(&self, registers: &dyn Registers, _: Mode, queue: usize, causes: Causes) {
        igb::set_vectors(registers, queue, causes);
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
