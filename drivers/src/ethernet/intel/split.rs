//! Splits a port into several, each with a pair of queues for another core.

use super::chip::Rings;
use super::error::Error;
use super::port::IntelPort;
use super::queue_port::{QueuePort, State};
use super::receive::Receiver;
use super::transmit::Transmitter;
use crate::ethernet::owners::Owners;
use crate::hal::{Clock, HashKey, Platform, Port, Window};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl IntelPort {
    /// See [`Port::split`].
    pub fn add_queues(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        let most = self.chip.queues().min(more + 1);
        let owners = Arc::new(Owners::new(most - 1));
        let mut ports = Vec::new();
        while ports.len() + 1 < most {
            let Some(port) = self.open_queue(ports.len() + 1, &owners, platform) else { break };
            ports.push(port);
        }
        if ports.is_empty() {
            return ports;
        }
        (self.key, self.owners) = (*key, Some(owners));
        self.begin();
        // A chip that fails this reset is taken out of use, with a notice.
        if let Err(error) = self.await_life(None, clock) {
            self.give_up(error);
        }
        ports
    }

    /// Opens the port of pair `queue`. None if there are no interrupts or memory for it.
    #[inline(never)]
    fn open_queue(
        &mut self,
        queue: usize,
        owners: &Arc<Owners>,
        platform: &mut dyn Platform,
    ) -> Option<Box<dyn Port + Send>> {
        let chip = self.chip.for_further_queue()?;
        let signal = self.signal.of_queue(queue, &self.function, platform)?;
        let address = self.function.bars().get(0)?.range(0, self.chip.registers() as u64)?;
        let registers = platform.map_registers(address, self.chip.registers())?;
        let mut memory: Vec<Window> = Vec::new();
        let arena = platform.arena();
        let mut rings = || -> Result<_, Error> {
            let receiver = Receiver::new(arena, &*chip, queue, &mut memory)?;
            Ok((receiver, Transmitter::new(arena, &*chip, queue, &mut memory)?))
        };
        let Ok((receiver, transmitter)) = rings() else {
            memory.into_iter().for_each(|window| platform.arena().free(window));
            return None;
        };
        self.rings.push(Rings::of(&receiver, &transmitter));
        Some(Box::new(QueuePort {
            function: self.function,
            registers,
            chip,
            signal,
            receiver,
            transmitter,
            owners: owners.clone(),
            queue,
            mac: self.mac,
            mtu: self.mtu,
            longest: self.longest,
            state: State::default(),
        }))
    }
}
