//! The PCI function, which a provider shares with the Ethernet port of the same loop. It is borrowed for one call at a
//! time: the callback of [`Port::receive_each`] must not use the provider.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{RefCell, RefMut};
use core::hint::spin_loop;
use core::time::Duration;
use drivers::ethernet::mlx5::{self, Abilities, Command, Mlx5Port, PairEvent};
use drivers::hal::{
    Arena, DeviceLife, Frame, Instant, Interrupt, Notice, Packet, Port, PortCounters,
    TransmitError, TransmitProgress, UdpFlow,
};

/// Memory polls between two register reads while waiting for the card.
const SPINS: u32 = 200;
/// Register reads before giving up, for a machine that has no clock for drivers.
const LOOKS: u32 = 20_000;
/// Timeout of a command (as in Linux). Firmware serves all functions of a card, and may be busy with another.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for which the loop waits for a change of keys, which the card makes without its firmware.
pub(crate) const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The function.
#[derive(Clone)]
pub struct Function(Rc<RefCell<Mlx5Port>>);

impl Function {
    /// The function of a port that is not in use yet.
    pub fn new(port: Mlx5Port) -> Self {
        Function(Rc::new(RefCell::new(port)))
    }

    /// Its Ethernet port.
    pub fn ethernet(&self) -> EthernetPort {
        EthernetPort { function: self.clone(), copy: Vec::new() }
    }

    /// Its Ethernet port, for one call.
    #[inline]
    pub fn port(&self) -> RefMut<'_, Mlx5Port> {
        self.0.borrow_mut()
    }

    /// Resets the card, which comes up again without RDMA.
    pub fn reset(&self) {
        self.port().give_up();
    }

    #[inline]
    pub(crate) fn life(&self) -> Option<u64> {
        self.0.borrow().life()
    }

    pub(crate) fn abilities(&self) -> Option<Abilities> {
        self.0.borrow().abilities()
    }

    pub(crate) fn mac(&self) -> [u8; 6] {
        self.0.borrow().mac()
    }

    pub(crate) fn mtu(&self) -> usize {
        self.0.borrow().mtu()
    }

    /// The link state. Reading it also drives a card's recovery after a reset.
    #[inline]
    pub(crate) fn link_up(&self) -> bool {
        self.port().link_up()
    }

    pub(crate) fn submit(
        &self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<(), mlx5::Error> {
        self.port().give(command, operation, input, output)
    }

    pub(crate) fn answer(&self) -> Option<Result<Vec<u8>, mlx5::Error>> {
        self.port().answer()
    }

    /// Waits for the card, until `done` returns a result. After `most` without one the card is reset.
    pub(crate) fn wait_for<T>(
        &self,
        most: Duration,
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T, mlx5::Error> {
        let has_clock = self.port().has_clock();
        let since = self.port().now();
        let mut looks = 0;
        loop {
            for _ in 0..SPINS {
                if let Some(answer) = done() {
                    return Ok(answer);
                }
                spin_loop();
            }
            self.port().look()?;
            looks += 1;
            let is_late = match has_clock {
                true => self.port().now().since(since) > most,
                false => looks >= LOOKS,
            };
            if is_late {
                self.reset();
                return Err(mlx5::Error::Late("of RDMA"));
            }
        }
    }

    /// Waits for the answer to the command.
    pub(crate) fn wait(&self) -> Result<Vec<u8>, mlx5::Error> {
        self.wait_for(COMMAND_TIMEOUT, || self.answer())?
    }

    /// Stops the card's access to memory: permanently if this is the only user of the function, otherwise by a reset.
    pub(crate) fn end(&self) {
        match Rc::strong_count(&self.0) {
            1 => self.port().end(),
            _ => self.reset(),
        }
    }

    #[inline]
    pub(crate) fn ring(&self, first: u64) {
        self.0.borrow().ring(first);
    }

    pub(crate) fn arm(&self, word: u32, queue: u32) {
        self.0.borrow().arm(word, queue);
    }

    /// Whether there is an event that was not handled yet.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.0.borrow().has_news()
    }

    #[inline]
    pub(crate) fn pair_event(&self) -> Option<PairEvent> {
        self.port().pair_event()
    }
}

/// The Ethernet port of a function that is shared with a provider.
pub struct EthernetPort {
    function: Function,
    /// The frame that [`Port::receive`] returned. Loops use [`Port::receive_each`], which copies nothing.
    copy: Vec<u8>,
}

impl Port for EthernetPort {
    fn mac(&self) -> [u8; 6] {
        self.function.mac()
    }

    fn mtu(&self) -> usize {
        self.function.mtu()
    }

    fn link_up(&mut self) -> bool {
        self.function.port().link_up()
    }

    fn receive(&mut self) -> Option<Frame> {
        let copy = &mut self.copy;
        copy.clear();
        let taken = self.function.port().receive_each(1, &mut |bytes| {
            copy.extend_from_slice(bytes);
            true
        });
        (taken > 0).then_some(Frame { buffer: 0, len: self.copy.len() as u32 })
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.copy.get(..frame.len as usize).unwrap_or_default()
    }

    fn recycle(&mut self, _: Frame) {}

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.function.port().receive_each(most, take)
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.function.port().transmit(packet)
    }

    fn flush(&mut self) {
        self.function.port().flush();
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.function.port().set_interrupts(wanted);
    }

    fn interrupt_at(&mut self, frame: usize) {
        self.function.port().interrupt_at(frame);
    }

    fn pending(&self) -> bool {
        self.function.0.borrow().pending()
    }

    fn has_room(&self) -> bool {
        self.function.0.borrow().has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.function.port().progress()
    }

    fn route(&mut self, interrupt: &Interrupt) -> bool {
        self.function.port().route(interrupt)
    }

    fn steer(&mut self, flow: UdpFlow, arena: &mut Arena) -> bool {
        self.function.port().steer(flow, arena)
    }

    fn unsteer(&mut self, flow: UdpFlow) {
        self.function.port().unsteer(flow);
    }

    fn wakes(&self) -> bool {
        self.function.0.borrow().wakes()
    }

    fn watch(&mut self, now: Instant) {
        self.function.port().watch(now);
    }

    fn notice(&mut self) -> Option<Notice> {
        self.function.port().notice()
    }

    fn life(&self) -> DeviceLife {
        Port::life(&*self.function.port())
    }

    fn counters(&self) -> PortCounters {
        self.function.0.borrow().counters()
    }
}
