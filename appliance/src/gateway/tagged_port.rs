//! A port that adds a VLAN tag to transmitted frames. Received frames keep their tag, which the plane checks
//! (`receive.rs`). All drivers accept frames of their MTU with one tag, so the MTU is unchanged.

use drivers::driver::OpenedPort;
use drivers::hal::{
    Clock, DeviceLife, Frame, HashKey, Instant, Interrupt, Notice, Packet, Platform, Port,
    PortCounters, TransmitError, TransmitProgress,
};
use net::vlan;

/// Bytes of the longest header beyond the MTU.
const OVERHEAD: usize = 18;

/// Puts the port of the interface `name` on the configured VLAN, if there is one.
pub(super) fn on_vlan(port: OpenedPort, vid: Option<u16>, name: &str) -> OpenedPort {
    let Some(vid) = vid else { return port };
    log::info!("{name}: VLAN {vid}");
    OpenedPort::Plain(Box::new(TaggedPort::new(port.plain(), vid)))
}

/// A port on a VLAN.
pub(super) struct TaggedPort {
    port: Box<dyn Port + Send>,
    vid: u16,
    /// Buffer of the tagged header.
    header: Vec<u8>,
}

impl TaggedPort {
    /// Puts `port` on the VLAN with this number.
    pub fn new(port: Box<dyn Port + Send>, vid: u16) -> Self {
        let header = Vec::with_capacity(port.mtu() + OVERHEAD);
        TaggedPort { port, vid, header }
    }
}

impl Port for TaggedPort {
    fn mac(&self) -> [u8; 6] {
        self.port.mac()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn vlan(&self) -> Option<u16> {
        Some(self.vid)
    }

    fn link_up(&mut self) -> bool {
        self.port.link_up()
    }

    fn receive(&mut self) -> Option<Frame> {
        self.port.receive()
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.port.bytes(frame)
    }

    fn recycle(&mut self, frame: Frame) {
        self.port.recycle(frame);
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.port.receive_each(most, take)
    }

    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        if packet.header.len() + vlan::TAG > self.header.capacity() {
            return Err(TransmitError::TooLarge);
        }
        self.header.clear();
        vlan::tag(packet.header, self.vid, &mut self.header);
        self.port.transmit(&Packet { header: &self.header, ..*packet })
    }

    fn flush(&mut self) {
        self.port.flush();
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.port.set_interrupts(wanted);
    }

    fn interrupt_at(&mut self, frame: usize) {
        self.port.interrupt_at(frame);
    }

    fn pending(&self) -> bool {
        self.port.pending()
    }

    fn has_room(&self) -> bool {
        self.port.has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.port.progress()
    }

    fn is_sending(&mut self) -> bool {
        self.port.is_sending()
    }

    fn route(&mut self, interrupt: &Interrupt) -> bool {
        self.port.route(interrupt)
    }

    fn split(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        let queues = self.port.split(more, key, platform, clock).into_iter();
        let tagged = |port| -> Box<dyn Port + Send> { Box::new(TaggedPort::new(port, self.vid)) };
        queues.map(tagged).collect()
    }

    // `steer` keeps its default, which does nothing, because not every device matches flows behind a tag.

    fn wakes(&self) -> bool {
        self.port.wakes()
    }

    fn watch(&mut self, now: Instant) {
        self.port.watch(now);
    }

    fn notice(&mut self) -> Option<Notice> {
        self.port.notice()
    }

    fn life(&self) -> DeviceLife {
        self.port.life()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Records transmitted frames.
    #[derive(Clone, Default)]
    struct Wire(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Port for Wire {
        fn mac(&self) -> [u8; 6] {
            [2, 0, 0, 0, 0, 1]
        }
        fn mtu(&self) -> usize {
            1500
        }
        fn link_up(&mut self) -> bool {
            true
        }
        fn receive(&mut self) -> Option<Frame> {
            None
        }
        fn bytes(&self, _: &Frame) -> &[u8] {
            &[]
        }
        fn recycle(&mut self, _: Frame) {}
        fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
            self.0.lock().unwrap().push([packet.header, packet.trailer].concat());
            Ok(())
        }
        fn flush(&mut self) {}
        fn set_interrupts(&mut self, _: bool) {}
        fn pending(&self) -> bool {
            false
        }
        fn progress(&mut self) -> TransmitProgress {
            TransmitProgress::default()
        }
        fn counters(&self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn frames_leave_with_the_tag() {
        let wire = Wire::default();
        let mut port = TaggedPort::new(Box::new(wire.clone()), 5);
        let header: Vec<u8> = (0..60).collect();
        let packet = Packet { header: &header, payload: &[], trailer: b"icrc" };
        port.transmit(&packet).unwrap();
        let sent = wire.0.lock().unwrap()[0].clone();
        let tagged = [&header[..12], &[0x81, 0, 0, 5], &header[12..], b"icrc"].concat();
        assert_eq!((sent, port.vlan()), (tagged, Some(5)));
        // The largest packet passes, and no larger one.
        for (length, fits) in [(1514, true), (1515, false)] {
            let header = vec![0; length];
            let packet = Packet { header: &header, payload: &[], trailer: &[] };
            assert_eq!(port.transmit(&packet).is_ok(), fits);
        }
    }
}
