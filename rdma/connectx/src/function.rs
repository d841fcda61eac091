//! The PCI function, which a provider shares with the Ethernet port of the same loop. It is borrowed for one call at a
//! time: who takes frames ([`Port::receive_each`]) must not use the provider meanwhile.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{RefCell, RefMut};
use core::hint::spin_loop;
use drivers::ethernet::mlx5::{self, Abilities, Command, Mlx5Port, PairEvent};
use drivers::hal::{
    Arena, Frame, Instant, Interrupt, Notice, Packet, Port, PortCounters, TransmitError,
    TransmitProgress, UdpFlow,
};

/// Looks at memory between two at registers, while the card is waited for, and those at registers until it is given up:
/// a read of a register takes a microsecond or so, and all of it some tenths of a second.
const SPINS: u32 = 200;
const LOOKS: u32 = 20_000;

/// The function.
#[derive(Clone)]
pub struct Function(Rc<RefCell<Mlx5Port>>);

impl Function {
    /// That of a port which nobody has used yet.
    pub fn new(port: Mlx5Port) -> Self {
        Function(Rc::new(RefCell::new(port)))
    }

    /// Its Ethernet port.
    pub fn ethernet(&self) -> EthernetPort {
        EthernetPort { function: self.clone(), copy: Vec::new() }
    }

    /// Its Ethernet port, for a call.
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

    /// Asking helps a card to come up that was reset.
    #[inline]
    pub(crate) fn link_up(&self) -> bool {
        self.port().link_up()
    }

    pub(crate) fn give(
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

    /// Waits for something that the card does, of which `done` tells, which is asked again and again. That is some tenths of
    /// a second at most, then the card is reset.
    pub(crate) fn wait_for<T>(
        &self,
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T, mlx5::Error> {
        for _ in 0..LOOKS {
            for _ in 0..SPINS {
                if let Some(answer) = done() {
                    return Ok(answer);
                }
                spin_loop();
            }
            self.port().look()?;
        }
        self.reset();
        Err(mlx5::Error::Late("of RDMA"))
    }

    /// Waits for the answer to the command.
    pub(crate) fn wait(&self) -> Result<Vec<u8>, mlx5::Error> {
        self.wait_for(|| self.answer())?
    }

    /// Has the card reach memory no more: for ever if nobody else has the function, else until it was reset.
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

    /// Whether there is an event that was not taken.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.0.borrow().has_news()
    }

    #[inline]
    pub(crate) fn pair_event(&self) -> Option<PairEvent> {
        self.port().pair_event()
    }
}

/// The Ethernet port of a function that a provider has too.
pub struct EthernetPort {
    function: Function,
    /// The frame that [`Port::receive`] returned. Loops take frames by [`Port::receive_each`], which copies nothing.
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

    fn counters(&self) -> PortCounters {
        self.function.0.borrow().counters()
    }
}
