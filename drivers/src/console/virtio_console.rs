//! Virtio console device (virtio 1.2, 5.3): its first port. Receive interrupts stay enabled, because input is rare.

use super::ConsoleLine;
use crate::driver::{Device, OpenError};
use crate::hal::{Platform, Window};
use crate::virtio::{self, Descriptor, Live, Ring, Setup, Taken};
use alloc::boxed::Box;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Receive buffers.
const BUFFERS: u16 = 8;
/// Bytes of a receive buffer, and of the transmit buffer.
const BUFFER: usize = 64;

/// The console.
struct VirtioConsole {
    transport: Live,
    receive: Ring,
    transmit: Ring,
    /// Receive buffers, indexed by descriptor; the transmit buffer follows them.
    memory: Window,
    /// A buffer that is partly read: its descriptor, and the begin and end of its unread bytes.
    open: Option<(u16, usize, usize)>,
    /// The last read filled its destination, so more input may be waiting.
    may_have_more: bool,
}

/// Sets a device up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
) -> Result<Box<dyn ConsoleLine>, OpenError> {
    let mut transport = virtio::attach(device, platform)?;
    let mut setup = Setup::begin(&mut *transport, platform.arena(), 0)?;
    let mut receive = setup.queue(RECEIVE, BUFFERS, true)?;
    let transmit = setup.queue(TRANSMIT, 1, false)?;
    let buffers = receive.size();
    let memory = setup.alloc((usize::from(buffers) + 1) * BUFFER, BUFFER)?;
    for i in 0..buffers {
        let address = memory.bus_address() + u64::from(i) * BUFFER as u64;
        let len = BUFFER as u32;
        receive.describe(i, Descriptor { address, len, device_writes: true, next: None });
        receive.offer(i);
    }
    setup.finish();
    let transport = Live::new(transport);
    let mut console =
        VirtioConsole { transport, receive, transmit, memory, open: None, may_have_more: false };
    console.receive.set_interrupts(true);
    // The first buffers are always notified.
    let _ = console.receive.publish();
    console.transport.notify(RECEIVE);
    Ok(Box::new(console))
}

impl VirtioConsole {
    /// The next buffer with input.
    fn next(&mut self) -> Option<(u16, usize, usize)> {
        if self.open.is_some() {
            return self.open;
        }
        loop {
            match self.receive.take() {
                Taken::Chain { head, written } => {
                    let start = usize::from(head) * BUFFER;
                    // A length of 0 or beyond the buffer is invalid: the buffer is discarded.
                    match written as usize {
                        len @ 1..=BUFFER => return Some((head, start, start + len)),
                        _ => self.receive.offer(head),
                    }
                }
                Taken::Nonsense if !self.receive.is_dead() => {}
                Taken::Nonsense | Taken::Nothing => return None,
            }
        }
    }
}

impl ConsoleLine for VirtioConsole {
    fn has_rung(&self) -> bool {
        !self.may_have_more && self.receive.pending()
    }

    fn read(&mut self, into: &mut [u8]) -> usize {
        if self.open.is_none() && !self.receive.pending() {
            self.may_have_more = false;
            return 0;
        }
        self.transport.acknowledge();
        let mut taken = 0;
        while taken < into.len()
            && let Some((head, start, end)) = self.next()
        {
            let len = (end - start).min(into.len() - taken);
            // Within the buffer, which the device has returned.
            let _ = self.memory.read(start, &mut into[taken..taken + len]);
            taken += len;
            self.open = (start + len < end).then_some((head, start + len, end));
            if self.open.is_none() {
                self.receive.offer(head);
            }
        }
        self.may_have_more = taken == into.len();
        self.receive.set_interrupts(true);
        if self.receive.publish() {
            self.transport.notify(RECEIVE);
        }
        taken
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        // Invalid completions are skipped; a dead ring takes no output any more.
        while self.transmit.pending() && self.transmit.take() == Taken::Nonsense {}
        if bytes.is_empty() || self.transmit.outstanding() > 0 {
            return 0;
        }
        let len = bytes.len().min(BUFFER);
        let at = usize::from(self.receive.size()) * BUFFER;
        let _ = self.memory.write(at, &bytes[..len]);
        let address = self.memory.bus_address() + at as u64;
        self.transmit
            .describe(0, Descriptor { address, len: len as u32, device_writes: false, next: None });
        self.transmit.offer(0);
        if self.transmit.publish() {
            self.transport.notify(TRANSMIT);
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConsoleLine;
    use super::{BUFFER, BUFFERS, RECEIVE, TRANSMIT};
    use crate::driver::Class;
    use crate::virtio::model::{Machine, Model};
    use alloc::boxed::Box;
    use std::vec::Vec;

    const MODERN: u64 = 1 << 32;
    const EVENT_INDEX: u64 = 1 << 29;

    fn open(offered: u64) -> (Machine, Model, Box<dyn ConsoleLine>) {
        let mut machine = Machine::new(1 << 20);
        let model = Model::new(&machine, 3, offered, &[], &[64, 64]);
        machine.plug_pci(5, &model);
        let device = machine.find().take(Class::Console).remove(0);
        let console = device.open_console(&mut machine).unwrap();
        (machine, model, console)
    }

    /// Sends `bytes` from the host.
    fn typed(model: &Model, bytes: &[u8]) {
        let mut device = model.state();
        for part in bytes.chunks(BUFFER) {
            let chain = device.pop(RECEIVE.into()).expect("a buffer");
            let written = device.scatter(&chain, part);
            device.push(RECEIVE.into(), chain.head, written);
        }
    }

    fn read(console: &mut dyn ConsoleLine, at_once: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut piece = std::vec![0; at_once];
        loop {
            match console.read(&mut piece) {
                0 => return all,
                len => all.extend(&piece[..len]),
            }
        }
    }

    #[test]
    fn input_arrives_in_reads_of_any_size_and_interrupts() {
        for offered in [MODERN, MODERN | EVENT_INDEX] {
            for at_once in [1, 7, BUFFER, 1000] {
                let (_machine, model, mut console) = open(offered);
                for round in 0..100usize {
                    let text: Vec<u8> =
                        (0..1 + round * 5 % (BUFFER * 8)).map(|i| (i + round) as u8).collect();
                    let before = model.state().interrupts;
                    typed(&model, &text);
                    assert!(
                        model.state().interrupts > before && console.has_rung(),
                        "round {round}"
                    );
                    assert_eq!(console.read(&mut []), 0);
                    assert!(!console.has_rung(), "the last read had no room");
                    assert_eq!(read(&mut *console, at_once), text);
                    assert!(!console.has_rung());
                }
            }
        }
    }

    #[test]
    fn output_waits_until_the_host_has_taken_it() {
        let (_machine, model, mut console) = open(MODERN);
        let text: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        let (mut sent, mut received) = (0, Vec::new());
        while sent < text.len() {
            let taken = console.write(&text[sent..]);
            assert!((1..=BUFFER).contains(&taken));
            assert_eq!(console.write(&text[sent + taken..]), 0, "one at a time");
            sent += taken;
            let mut device = model.state();
            let chain = device.pop(TRANSMIT.into()).unwrap();
            received.extend(device.gather(&chain));
            device.push(TRANSMIT.into(), chain.head, 0);
        }
        assert_eq!(received, text);
        assert_eq!(console.write(&[]), 0);
    }

    #[test]
    fn impossible_lengths_and_completions_do_no_harm() {
        let (_machine, model, mut console) = open(MODERN);
        for written in [0, BUFFER as u32 + 1, u32::MAX] {
            let mut device = model.state();
            let chain = device.pop(RECEIVE.into()).unwrap();
            device.push(RECEIVE.into(), chain.head, written);
        }
        model.state().lie(RECEIVE.into(), 9999, 4, 1);
        model.state().lie(TRANSMIT.into(), 5, 4, 1);
        assert_eq!(read(&mut *console, 100), []);
        assert_eq!(console.write(b"still"), 5);
        typed(&model, b"here");
        assert_eq!(read(&mut *console, 100), b"here");
        // An index that jumps kills the receive queue only.
        model.state().lie(RECEIVE.into(), 0, 4, BUFFERS * 100);
        assert_eq!(read(&mut *console, 100), []);
        assert_eq!(console.write(b"waits"), 0);
    }
}
