//! A walk: a sequence of requests to devices. Each is sent when the port has completed the previous one.

use super::reach::Reach;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::{IdSize, Maintained, Maintenance, MaintenanceError};

/// Why a walk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A device did not answer.
    NoAnswer,
    /// The port's link is down.
    LinkDown,
    /// A host with a higher id enumerates the network; its id.
    HigherHost(u16),
    /// Another host has enumerated the own port, or is doing so; its id.
    OtherHost(u16),
    /// A host with a lower id does not release the lock of a device; its id.
    StuckLock(u16),
    /// More devices than there are ids.
    NoIdLeft,
}

/// Destination id and hop count that address a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    pub to: u16,
    pub hops: u8,
}

#[derive(Clone, Copy)]
enum Request {
    Maintain(Maintenance),
    ReadOwn(u32),
    WriteOwn(u32, u32),
    SetOwnId(IdSize, u16),
    Wait(Duration),
}

#[derive(Default)]
struct Shared {
    request: Cell<Option<Request>>,
    answer: Cell<Option<Maintained>>,
}

/// A walk's access to the port.
#[derive(Clone)]
pub struct Fabric(Rc<Shared>);

impl Fabric {
    async fn request(&self, request: Request) -> Maintained {
        self.0.request.set(Some(request));
        poll_fn(|_| match self.0.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    async fn maintain(&self, path: Path, offset: u32, write: Option<u32>) -> Result<u32, Failed> {
        let Path { to, hops } = path;
        let answer = self.request(Request::Maintain(Maintenance { to, hops, offset, write })).await;
        answer.map_err(|error| match error {
            MaintenanceError::NoAnswer => Failed::NoAnswer,
            MaintenanceError::PortDown => Failed::LinkDown,
        })
    }

    /// Reads a register of a device.
    pub async fn read(&self, path: Path, offset: u32) -> Result<u32, Failed> {
        self.maintain(path, offset, None).await
    }

    /// Writes a register of a device.
    pub async fn write(&self, path: Path, offset: u32, value: u32) -> Result<(), Failed> {
        self.maintain(path, offset, Some(value)).await.map(|_| ())
    }

    /// Reads a register of the own port.
    pub async fn read_own(&self, offset: u32) -> u32 {
        self.request(Request::ReadOwn(offset)).await.unwrap_or(u32::MAX)
    }

    /// Writes a register of the own port.
    pub async fn write_own(&self, offset: u32, value: u32) {
        // The port's own registers always answer.
        let _ = self.request(Request::WriteOwn(offset, value)).await;
    }

    /// Sets the id of the own port.
    pub async fn set_own_id(&self, size: IdSize, id: u16) {
        let _ = self.request(Request::SetOwnId(size, id)).await;
    }

    /// Waits for `time`.
    pub async fn wait(&self, time: Duration) {
        let _ = self.request(Request::Wait(time)).await;
    }
}

enum Step {
    /// The walk can continue.
    Ready,
    /// A request waits until the port accepts it.
    Sending(Maintenance),
    /// The port has accepted the request.
    Waiting,
    Until(Instant),
}

/// A walk in progress, which returns a `T`.
pub struct Walk<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    shared: Rc<Shared>,
    step: Step,
}

impl<T> Walk<T> {
    /// The walk of an `async` function.
    pub fn new<F: Future<Output = T> + 'static>(walk: impl FnOnce(Fabric) -> F) -> Self {
        let shared = Rc::new(Shared::default());
        let future = Box::pin(walk(Fabric(shared.clone())));
        Walk { future, shared, step: Step::Ready }
    }

    /// Continues as far as the port allows. Returns the result at the end.
    pub fn poll(&mut self, port: &mut dyn Reach, now: Instant) -> Option<T> {
        loop {
            match self.step {
                Step::Ready => {}
                Step::Sending(request) => {
                    port.maintain(&request).ok()?;
                    self.step = Step::Waiting;
                    continue;
                }
                Step::Waiting => {
                    let answer = port.maintained()?;
                    self.shared.answer.set(Some(answer));
                }
                Step::Until(then) if now < then => return None,
                Step::Until(_) => self.shared.answer.set(Some(Ok(0))),
            }
            self.step = Step::Ready;
            let context = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(end) = self.future.as_mut().poll(context) {
                return Some(end);
            }
            match self.shared.request.take()? {
                Request::Maintain(request) => self.step = Step::Sending(request),
                Request::Wait(time) => self.step = Step::Until(now + time),
                Request::ReadOwn(offset) => {
                    self.shared.answer.set(Some(Ok(port.read_own(offset))));
                }
                Request::WriteOwn(offset, value) => {
                    port.write_own(offset, value);
                    self.shared.answer.set(Some(Ok(0)));
                }
                Request::SetOwnId(size, id) => {
                    port.set_own_id(size, id);
                    self.shared.answer.set(Some(Ok(0)));
                }
            }
        }
    }

    /// When the walk must be polled again without an answer of the port.
    pub fn deadline(&self) -> Option<Instant> {
        match self.step {
            Step::Until(then) => Some(then),
            _ => None,
        }
    }
}
