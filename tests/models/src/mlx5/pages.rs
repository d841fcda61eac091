//! Pages that the driver lends to the firmware: requests, supply and return.

use super::command::{BAD_PARAMETER, BAD_SYSTEM_STATE, Reply, done, refuse};
use super::fields::{be16, be32, be64, put32};
use super::state::Stage;
use super::{Mlx5, capabilities};
use crate::Machine;

/// Written to both ends of a page while the firmware owns it, to detect the host's writes.
const MARK: [u8; 8] = *b"firmware";
const PAGE: u64 = 4096;

impl Mlx5 {
    /// Pages that the firmware needs at boot, and before INIT_HCA with the capabilities that the driver has set.
    pub(super) fn pages_to_start(&self) -> [u32; 2] {
        let [boot, init, _] = self.settings.pages;
        let fewer = capabilities::LOG_PAIRS.saturating_sub(self.log_pairs());
        [boot, init + (self.settings.pages_for_pairs >> fewer)]
    }

    pub(super) fn query_pages(&mut self, input: &[u8]) -> Reply {
        let [boot, init] = self.pages_to_start().map(|count| count as i32);
        let owned = self.state.pages.len() as i32;
        let count = match be16(input, 6) {
            1 => boot - owned,
            2 => boot + init - owned,
            3 => self.state.wanted + self.state.owed.max(0),
            what => return refuse(BAD_PARAMETER, format!("pages of unknown kind {what}")),
        };
        let mut output = vec![0; 16];
        put32(&mut output, 0xc, count.max(0) as u32);
        Ok(output)
    }

    pub(super) fn manage_pages(&mut self, input: &[u8], machine: &mut dyn Machine) -> Reply {
        let count = be32(input, 0xc) as usize;
        if be32(input, 8) != 0 {
            return refuse(BAD_PARAMETER, format!("pages of function {:#x}", be32(input, 8)));
        }
        match be16(input, 6) {
            0 => {
                (self.state.owed, self.state.stalls) = (0, false);
                self.complain("the driver reports that it has no pages");
                done()
            }
            1 => self.give_pages(&input[16..], count, machine),
            2 => self.take_pages(count, machine),
            what => refuse(BAD_PARAMETER, format!("operation {what}")),
        }
    }

    fn give_pages(&mut self, list: &[u8], count: usize, machine: &mut dyn Machine) -> Reply {
        if list.len() != 8 * count {
            return refuse(0x50, format!("{count} pages in {} bytes", list.len()));
        }
        for at in (0..count).map(|n| be64(list, 8 * n)) {
            if at % PAGE != 0 || self.state.pages.contains(&at) {
                return refuse(BAD_PARAMETER, format!("the page {at:#x}"));
            }
            let ends = [at, at + PAGE - MARK.len() as u64];
            if ends.into_iter().any(|at| machine.write(at, &MARK).is_err()) {
                return refuse(BAD_PARAMETER, format!("no memory at the page {at:#x}"));
            }
            self.state.pages.push_back(at);
        }
        if self.state.stage == Stage::Running {
            let requested = self.state.owed.max(0).min(count as i32);
            self.state.owed -= requested;
            self.state.wanted = (self.state.wanted - (count as i32 - requested)).max(0);
            self.state.stalls &= self.state.owed > 0;
        }
        done()
    }

    fn take_pages(&mut self, count: usize, machine: &mut dyn Machine) -> Reply {
        let offered = match self.state.stage {
            Stage::TornDown => count,
            Stage::Running => (-self.state.owed).max(0) as usize,
            _ => return refuse(BAD_SYSTEM_STATE, "pages are not returned in this stage"),
        };
        let count = count.min(offered).min(self.state.pages.len());
        let mut output = vec![0; 16];
        put32(&mut output, 8, count as u32);
        for at in self.state.pages.drain(..count).collect::<Vec<_>>() {
            for end in [at, at + PAGE - MARK.len() as u64] {
                let mut bytes = [0; MARK.len()];
                if machine.read(end, &mut bytes).is_err() || bytes != MARK {
                    self.complain(format!("the host wrote to {end:#x}, in a page of the firmware"));
                }
            }
            output.extend_from_slice(&at.to_be_bytes());
        }
        if self.state.stage == Stage::Running {
            self.state.owed += count as i32;
        }
        Ok(output)
    }

    /// Requests pages by an event, or offers to return pages.
    pub(super) fn request_pages(&mut self, count: i32, machine: &mut dyn Machine) {
        self.state.owed += count;
        let Some(queue) = self.asynchronous(0x0b) else { return };
        let mut data = [0; 28];
        put32(&mut data, 4, count as u32);
        self.event(queue, 0x0b, 0, &data, machine);
    }
}
