//! The two threads that copy frames between queues and TAP device.

use super::net::Net;
use super::queue::{Queue, Wrong};
use super::{Fault, World};
use crate::{Interrupt, Machine};

/// Most bytes that a read of the TAP device returns: virtio header and frame.
const CAPACITY: usize = 1500 + 12;
const HEADER: usize = 12;

/// Runs both threads until they have no work.
pub fn run(net: &mut Net, fault: Option<Fault>, memory: &mut dyn Machine, world: &mut World) {
    let Some([mut receive, mut transmit]) = net.running.take() else { return };
    if net.dead_threads[1].is_none()
        && std::mem::take(&mut net.notified[1])
        && let Err(Wrong(why)) = send(net, &mut transmit, fault, memory)
    {
        net.dead_threads[1] = Some(why);
    }
    if net.dead_threads[0].is_none()
        && let Err(Wrong(why)) = receive_all(net, &mut receive, fault, memory)
    {
        net.dead_threads[0] = Some(why);
    }
    for (thread, why) in ["receive", "transmit"].iter().zip(&net.dead_threads) {
        if let Some(why) = why
            && !world.complaints.iter().any(|said| said.contains(thread))
        {
            world.complain(format!("thread '{thread}' panicked: {why}"));
        }
    }
    net.running = Some([receive, transmit]);
}

fn send(
    net: &mut Net,
    queue: &mut Queue,
    fault: Option<Fault>,
    memory: &mut dyn Machine,
) -> Result<(), Wrong> {
    queue.want_notification(memory, false)?;
    while let Some(chain) = queue.pop(memory)? {
        let mut frame = Vec::new();
        for (address, len, _) in chain.parts.iter().filter(|part| !part.2) {
            let before = frame.len();
            frame.resize(before + *len as usize, 0);
            memory.read(*address, &mut frame[before..])?;
        }
        let len = frame.len() as u32;
        net.tap.sent.push(frame);
        match fault {
            Some(Fault::NeverCompletes) => {}
            Some(Fault::Garbage) => queue.put_used(memory, 0xffff_fff0, u32::MAX, 0x7777)?,
            _ => queue.add_used(memory, chain.head, len)?,
        }
    }
    // A buffer that the driver adds between the last `pop` and this is not noticed.
    if fault != Some(Fault::Unlucky) {
        queue.want_notification(memory, true)?;
    }
    Ok(())
}

fn receive_all(
    net: &mut Net,
    queue: &mut Queue,
    fault: Option<Fault>,
    memory: &mut dyn Machine,
) -> Result<(), Wrong> {
    while let Some(frame) = net.tap.arriving.front() {
        queue.want_notification(memory, false)?;
        // The thread waits for a notification, and checks the queue only then.
        let Some(chain) = queue.pop(memory)? else {
            if fault != Some(Fault::Unlucky) {
                queue.want_notification(memory, true)?;
            }
            if std::mem::take(&mut net.notified[0]) {
                continue;
            }
            return Ok(());
        };
        let mut frame = frame.clone();
        if frame.len() > CAPACITY {
            net.cut += 1;
            frame.truncate(CAPACITY);
        }
        net.tap.arriving.pop_front();
        if frame.len() < HEADER {
            continue;
        }
        frame[10] = 1;
        let mut rest = &frame[..];
        for (address, len, _) in chain.parts.iter().filter(|part| part.2) {
            let (now, later) = rest.split_at(rest.len().min(*len as usize));
            memory.write(*address, now)?;
            rest = later;
        }
        if !rest.is_empty() {
            return Err(Wrong(format!("{} bytes of a frame have no room", rest.len())));
        }
        match fault {
            Some(Fault::NeverCompletes) => {}
            Some(Fault::Garbage) => queue.put_used(memory, 0x1234_5678, u32::MAX, 0x4444)?,
            _ => queue.add_used(memory, chain.head, frame.len() as u32)?,
        }
        queue.want_notification(memory, true)?;
        // uhyve raises the interrupt without checking the driver's suppression flag.
        net.isr = true;
        net.interrupts += 1;
        memory.interrupt(Interrupt::Intx);
    }
    Ok(())
}
