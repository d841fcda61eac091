//! Probes an Ethernet port: link, transmitted frames, received frames.

use std::time::Duration;

use anyhow::{Result, bail};
use drivers::driver::Device;
use drivers::hal::{Clock, Instant, Packet, Port};
use vfio::Machine;

use super::opened;
use super::report::Report;

/// Time limit for the link to come up.
const LINK: Duration = Duration::from_secs(10);
/// Time limit for transmitting the frames.
const SENDING: Duration = Duration::from_secs(2);
/// How long the probe receives frames.
const LISTENING: Duration = Duration::from_secs(3);
/// Interval between calls of the driver's `watch`.
const WATCH: Duration = Duration::from_millis(100);
/// Number of frames to send.
const FRAMES: usize = 8;
/// EtherType for experiments (IEEE 802, 9.2.4), which no station answers.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// Opens the port, waits for its link, broadcasts some frames, and counts received frames.
pub fn probe(
    device: Device,
    machine: &mut Machine,
    clock: &dyn Clock,
    report: &mut Report,
) -> Result<()> {
    let mut port = opened(device.open_port(machine, &|_| None, clock))?;
    let mac = port.mac().map(|byte| format!("{byte:02x}")).join(":");
    report.print(&format!("MAC address {mac}, MTU {}", port.mtu()));

    let began = clock.now();
    let up = wait(&mut *port, clock, report, LINK, |port| port.link_up());
    if !up {
        bail!(
            "the link is down: check the cable, and that the other end (for a virtual function: the physical function) is up"
        );
    }
    report.print(&format!("link: up after {} ms", clock.now().since(began).as_millis()));

    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&port.mac());
    frame[12..14].copy_from_slice(&EXPERIMENT);
    for number in 0..FRAMES {
        frame[14] = number as u8;
        let packet = Packet { header: &frame, payload: &[], trailer: &[] };
        port.transmit(&packet)?;
    }
    port.flush();
    if !wait(&mut *port, clock, report, SENDING, |port| !port.is_sending()) {
        bail!("the device did not send all queued frames within {SENDING:?}");
    }
    report.print(&format!("transmit: {FRAMES} frames were sent"));

    let (mut others, mut own) = (0, 0);
    let source = port.mac();
    wait(&mut *port, clock, report, LISTENING, |port| {
        port.receive_each(usize::MAX, &mut |bytes| {
            let is_own =
                bytes.get(6..12) == Some(&source) && bytes.get(12..14) == Some(&EXPERIMENT);
            *if is_own { &mut own } else { &mut others } += 1;
            true
        });
        port.flush();
        own == FRAMES
    });
    let counters = port.counters();
    report.print(&format!(
        "receive: {others} frames of other stations, {own} of our own (returned by a loopback plug or a switch)"
    ));
    report.keep(&format!("{counters:?}"));
    if counters.rx_errors + counters.resets > 0 {
        bail!(
            "the device caused {} receive errors and {} resets",
            counters.rx_errors,
            counters.resets
        );
    }
    Ok(())
}

/// Polls until `done` returns true. Returns false after `limit`.
fn wait(
    port: &mut dyn Port,
    clock: &dyn Clock,
    report: &mut Report,
    limit: Duration,
    mut done: impl FnMut(&mut dyn Port) -> bool,
) -> bool {
    let began = clock.now();
    let mut watched = Instant::ZERO;
    while !done(port) {
        let now = clock.now();
        if now.since(began) > limit {
            return false;
        }
        if now.since(watched) > WATCH {
            watched = now;
            port.watch(now);
            while let Some(notice) = port.notice() {
                report.print(&format!("{:?}: {notice}", notice.severity));
            }
        }
        std::hint::spin_loop();
    }
    true
}
