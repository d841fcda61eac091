//! A walk: a sequence of questions to devices, asked one after the other when the port has answered the last.

use super::master::Reach;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::{IdSize, Maintained, Maintenance, MaintenanceError};

/// Why a walk came to no good end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A device did not answer.
    NoAnswer,
    /// The port's link is down.
    LinkDown,
    /// Another host with a higher id enumerates; its id.
    HigherHost(u16),
    /// Another host has enumerated our port, or is doing so; its id.
    OtherHost(u16),
    /// A host with a lower id keeps a device locked, and does not go on.
    StuckLock(u16),
    /// More devices than there are ids.
    NoIdLeft,
}

/// How to reach a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    pub to: u16,
    pub hops: u8,
}

#[derive(Clone, Copy)]
enum Ask {
    Maintain(Maintenance),
    ReadOwn(u32),
    WriteOwn(u32, u32),
    SetOwnId(IdSize, u16),
    Wait(Duration),
}

#[derive(Default)]
struct Shared {
    ask: Cell<Option<Ask>>,
    answer: Cell<Option<Maintained>>,
}

/// What a walk asks by.
#[derive(Clone)]
pub struct Fabric(Rc<Shared>);

impl Fabric {
    async fn ask(&self, ask: Ask) -> Maintained {
        self.0.ask.set(Some(ask));
        poll_fn(|_| match self.0.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    async fn maintain(&self, path: Path, offset: u32, write: Option<u32>) -> Result<u32, Failed> {
        let Path { to, hops } = path;
        let answer = self.ask(Ask::Maintain(Maintenance { to, hops, offset, write })).await;
        answer.map_err(|error| match error {
            MaintenanceError::NoAnswer => Failed::NoAnswer,
            MaintenanceError::PortDown => Failed::LinkDown,
        })
    }

    /// Reads a register of a device.
    pub async fn read(&self, path: Path, offset: u32) -> Result<u32, Failed> {
        self.maintain(path, offset, None).await
    }

    /// Writes one.
    pub async fn write(&self, path: Path, offset: u32, value: u32) -> Result<(), Failed> {
        self.maintain(path, offset, Some(value)).await.map(|_| ())
    }

    /// Reads a register of the own port.
    pub async fn read_own(&self, offset: u32) -> u32 {
        self.ask(Ask::ReadOwn(offset)).await.unwrap_or(u32::MAX)
    }

    /// Writes one.
    pub async fn write_own(&self, offset: u32, value: u32) {
        // The port's own registers always answer.
        let _ = self.ask(Ask::WriteOwn(offset, value)).await;
    }

    /// Gives the own port an id.
    pub async fn set_own_id(&self, size: IdSize, id: u16) {
        let _ = self.ask(Ask::SetOwnId(size, id)).await;
    }

    /// Time passes.
    pub async fn wait(&self, time: Duration) {
        let _ = self.ask(Ask::Wait(time)).await;
    }
}

enum Doing {
    /// The walk may go on.
    Nothing,
    /// A question waits until the port has room.
    Asking(Maintenance),
    /// The port was asked.
    Waiting,
    Until(Instant),
}

/// A walk that is under way, and ends with a `T`.
pub struct Walk<T> {
    steps: Pin<Box<dyn Future<Output = T>>>,
    shared: Rc<Shared>,
    doing: Doing,
}

impl<T> Walk<T> {
    /// The walk that `steps` makes.
    pub fn new<F: Future<Output = T> + 'static>(steps: impl FnOnce(Fabric) -> F) -> Self {
        let shared = Rc::new(Shared::default());
        let steps = Box::pin(steps(Fabric(shared.clone())));
        Walk { steps, shared, doing: Doing::Nothing }
    }

    /// Goes on as far as the port lets it; what it has come to, at its end.
    pub fn poll(&mut self, port: &mut dyn Reach, now: Instant) -> Option<T> {
        loop {
            match self.doing {
                Doing::Nothing => {}
                Doing::Asking(request) => {
                    port.maintain(&request).ok()?;
                    self.doing = Doing::Waiting;
                    continue;
                }
                Doing::Waiting => {
                    let answer = port.maintained()?;
                    self.shared.answer.set(Some(answer));
                }
                Doing::Until(then) if now < then => return None,
                Doing::Until(_) => self.shared.answer.set(Some(Ok(0))),
            }
            self.doing = Doing::Nothing;
            let context = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(end) = self.steps.as_mut().poll(context) {
                return Some(end);
            }
            match self.shared.ask.take()? {
                Ask::Maintain(request) => self.doing = Doing::Asking(request),
                Ask::Wait(time) => self.doing = Doing::Until(now + time),
                Ask::ReadOwn(offset) => {
                    self.shared.answer.set(Some(Ok(port.read_own(offset))));
                }
                Ask::WriteOwn(offset, value) => {
                    port.write_own(offset, value);
                    self.shared.answer.set(Some(Ok(0)));
                }
                Ask::SetOwnId(size, id) => {
                    port.set_own_id(size, id);
                    self.shared.answer.set(Some(Ok(0)));
                }
            }
        }
    }

    /// When it wants to be polled though the port has not answered.
    pub fn deadline(&self) -> Option<Instant> {
        match self.doing {
            Doing::Until(then) => Some(then),
            _ => None,
        }
    }
}
