//! A volume that several loops use: its own loop has it, the others send their requests through
//! rings and get the completions back. Data does not move: requests name DMA memory, which is the
//! same for all.

use super::alarm::Alarm;
use core::sync::atomic::{AtomicU64, Ordering};
use drivers::hal::Geometry;
use rdma::volume::{Completion, Request, Submitted, Volume, VolumeError};
use rtrb::{Consumer, Producer, RingBuffer};
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Requests that each loop can have in flight.
const DEPTH: usize = 256;

/// Whose a request is, and what it is called there.
#[derive(Clone, Copy)]
struct Origin {
    /// Place among the users; the first is the volume's own loop.
    user: usize,
    tag: u64,
}

/// A user of the volume, at the volume's loop.
struct User {
    /// Requests that the volume had no room for, oldest first.
    held: VecDeque<Request>,
    way: Way,
}

enum Way {
    /// On the same loop.
    Own(VecDeque<Completion>),
    /// On another.
    Rings {
        requests: Consumer<Request>,
        completions: Producer<Completion>,
        alarm: Alarm,
        /// It was not told of its last completions yet.
        untold: bool,
    },
}

struct Inner {
    volume: Box<dyn Volume>,
    users: Vec<User>,
    in_flight: Slab<Origin>,
    /// Size in sectors, for all to see.
    sectors: Arc<AtomicU64>,
}

/// The volume at its own loop: a volume like any other, once its loop calls [`Hub::turn`] in every
/// round.
#[derive(Clone)]
pub(super) struct Hub(Rc<RefCell<Inner>>);

/// The volume at another loop.
pub(super) struct RemoteVolume {
    geometry: Geometry,
    sectors: Arc<AtomicU64>,
    requests: Producer<Request>,
    completions: Consumer<Completion>,
    in_flight: usize,
    /// That of the volume's loop.
    alarm: Alarm,
    untold: bool,
}

impl Hub {
    /// Has `volume` used by this loop, with the alarm `own`, and by those with the alarms `others`.
    pub fn new(
        volume: Box<dyn Volume>,
        own: &Alarm,
        others: &[Alarm],
    ) -> (Self, Vec<RemoteVolume>) {
        let geometry = volume.geometry();
        let sectors = Arc::new(AtomicU64::new(geometry.sectors));
        let user = |way| User { held: VecDeque::with_capacity(DEPTH), way };
        let mut users = vec![user(Way::Own(VecDeque::with_capacity(DEPTH)))];
        let connect = |alarm: &Alarm| {
            let (to_volume, requests) = RingBuffer::new(DEPTH);
            let (completions, from_volume) = RingBuffer::new(DEPTH);
            let alarm = alarm.clone();
            users.push(user(Way::Rings { requests, completions, alarm, untold: false }));
            RemoteVolume {
                geometry,
                sectors: sectors.clone(),
                requests: to_volume,
                completions: from_volume,
                in_flight: 0,
                alarm: own.clone(),
                untold: false,
            }
        };
        let remotes = others.iter().map(connect).collect();
        let in_flight = Slab::with_capacity(DEPTH * users.len());
        let inner = Inner { volume, users, in_flight, sectors };
        (Hub(Rc::new(RefCell::new(inner))), remotes)
    }

    /// Takes requests in and hands completions out; how many of both.
    pub fn turn(&self) -> usize {
        self.0.borrow_mut().turn()
    }
}

impl Inner {
    fn turn(&mut self) -> usize {
        let mut done = 0;
        for user in 0..self.users.len() {
            // No more than it can have waiting: others want their turn.
            for _ in 0..DEPTH {
                let Some(request) = self.next_request(user) else { break };
                let tag = request.tag;
                let result = match self.submit(user, &request) {
                    Err(VolumeError::Busy) => {
                        self.users[user].held.push_front(request);
                        break;
                    }
                    Ok(Submitted::Pending) => None,
                    Ok(Submitted::Done) => Some(Ok(())),
                    // What is lent may change before the other loop has sent it.
                    Ok(Submitted::Lent(data)) => {
                        Some(request.data.write_window(0, &data).map_err(|_| VolumeError::Invalid))
                    }
                    Err(error) => Some(Err(error)),
                };
                if let Some(result) = result {
                    self.complete(Origin { user, tag }, result);
                }
                done += 1;
            }
        }
        if done > 0 {
            self.volume.flush_queue();
        }
        while let Some(completion) = self.volume.poll() {
            done += 1;
            let origin = self.in_flight.try_remove(completion.tag as usize);
            if let Some(origin) = origin {
                self.complete(origin, completion.result);
            }
        }
        for user in &mut self.users {
            if let Way::Rings { alarm, untold, .. } = &mut user.way
                && core::mem::take(untold)
            {
                alarm.wake();
            }
        }
        let sectors = self.volume.geometry().sectors;
        if self.sectors.load(Ordering::Relaxed) != sectors {
            self.sectors.store(sectors, Ordering::Relaxed);
        }
        done
    }

    fn next_request(&mut self, user: usize) -> Option<Request> {
        let user = &mut self.users[user];
        match (user.held.pop_front(), &mut user.way) {
            (None, Way::Rings { requests, .. }) => requests.pop().ok(),
            (held, _) => held,
        }
    }

    fn submit(&mut self, user: usize, request: &Request) -> Result<Submitted, VolumeError> {
        let key = self.in_flight.insert(Origin { user, tag: request.tag });
        let submitted = self.volume.submit(&Request { tag: key as u64, ..*request });
        if !matches!(submitted, Ok(Submitted::Pending)) {
            self.in_flight.remove(key);
        }
        submitted
    }

    fn complete(&mut self, origin: Origin, result: Result<(), VolumeError>) {
        let completion = Completion { tag: origin.tag, result };
        match &mut self.users[origin.user].way {
            Way::Own(completions) => completions.push_back(completion),
            Way::Rings { completions, untold, .. } => {
                // It has room for all that a user has in flight.
                let _ = completions.push(completion);
                *untold = true;
            }
        }
    }
}

impl Volume for Hub {
    fn geometry(&self) -> Geometry {
        self.0.borrow().volume.geometry()
    }

    /// Refuses only when so many requests wait that one of them ends: others' requests may fill the
    /// volume, and of their ends this loop's server does not hear.
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let inner = &mut *self.0.borrow_mut();
        if inner.users[0].held.is_empty() {
            match inner.submit(0, request) {
                Err(VolumeError::Busy) => {}
                answer => return answer,
            }
        }
        let held = &mut inner.users[0].held;
        if held.len() >= DEPTH {
            return Err(VolumeError::Busy);
        }
        held.push_back(*request);
        Ok(Submitted::Pending)
    }

    fn flush_queue(&mut self) {
        self.0.borrow_mut().volume.flush_queue();
    }

    fn poll(&mut self) -> Option<Completion> {
        match &mut self.0.borrow_mut().users[0].way {
            Way::Own(completions) => completions.pop_front(),
            Way::Rings { .. } => None,
        }
    }
}

impl Volume for RemoteVolume {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: self.sectors.load(Ordering::Relaxed), ..self.geometry }
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        if self.in_flight >= DEPTH || self.requests.push(*request).is_err() {
            return Err(VolumeError::Busy);
        }
        self.in_flight += 1;
        self.untold = true;
        Ok(Submitted::Pending)
    }

    fn flush_queue(&mut self) {
        if core::mem::take(&mut self.untold) {
            self.alarm.wake();
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.pop().ok()?;
        self.in_flight -= 1;
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Bell;
    use drivers::hal::{Features, Window};
    use proptest::prelude::*;
    use rdma::volume::Operation;

    struct Silent;

    impl Bell for Silent {
        fn ring(&self) {}
    }

    /// A volume that holds few requests and ends them in an order of its own; sector 7 is bad.
    struct Slow {
        depth: usize,
        waiting: Vec<Completion>,
    }

    impl Volume for Slow {
        fn geometry(&self) -> Geometry {
            Geometry {
                sectors: 64,
                logical_block: 512,
                physical_block: 512,
                max_transfer: 512,
                max_discard_sectors: 0,
                discard_granularity: 512,
                max_write_zeroes_sectors: 0,
                features: Features::empty(),
            }
        }
        fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
            match request.operation {
                _ if request.sector >= 64 => Err(VolumeError::PastEnd),
                Operation::Flush => Ok(Submitted::Done),
                _ if self.waiting.len() == self.depth => Err(VolumeError::Busy),
                _ => {
                    let result = if request.sector == 7 { Err(VolumeError::Io) } else { Ok(()) };
                    self.waiting.push(Completion { tag: request.tag, result });
                    Ok(Submitted::Pending)
                }
            }
        }
        fn flush_queue(&mut self) {}
        fn poll(&mut self) -> Option<Completion> {
            (!self.waiting.is_empty()).then(|| self.waiting.swap_remove(0))
        }
    }

    proptest! {
        #[test]
        fn every_request_of_every_loop_ends_once_and_rightly(
            steps in proptest::collection::vec((0usize..4, 0u64..70, any::<bool>()), 1..400),
            depth in 1usize..5,
        ) {
            let alarm = Alarm::new(Box::new(Silent));
            let slow = Box::new(Slow { depth, waiting: Vec::new() });
            let (hub, remotes) = Hub::new(slow, &alarm, &[alarm.clone(), alarm.clone()]);
            let mut users: Vec<Box<dyn Volume>> = vec![Box::new(hub.clone())];
            users.extend(remotes.into_iter().map(|r| Box::new(r) as Box<dyn Volume>));
            let mut open: Vec<Vec<(u64, u64, bool)>> = vec![Vec::new(); 3];
            let right = |sector: u64, flush: bool| match (sector, flush) {
                (64.., _) => Err(VolumeError::PastEnd),
                (7, false) => Err(VolumeError::Io),
                _ => Ok(()),
            };
            let collect = |users: &mut Vec<Box<dyn Volume>>, open: &mut Vec<Vec<(u64, u64, bool)>>| {
                for (user, volume) in users.iter_mut().enumerate() {
                    while let Some(end) = volume.poll() {
                        let place = open[user].iter().position(|(tag, ..)| *tag == end.tag);
                        let (_, sector, flush) = open[user].swap_remove(place.expect("it was open"));
                        assert_eq!(end.result, right(sector, flush));
                    }
                }
            };
            for (number, (user, sector, flush)) in steps.into_iter().enumerate() {
                if user == 3 {
                    hub.turn();
                    collect(&mut users, &mut open);
                    continue;
                }
                let operation = if flush { Operation::Flush } else { Operation::Read };
                let tag = number as u64 * 3;
                let request = Request { tag, operation, sector, data: Window::empty() };
                match users[user].submit(&request) {
                    Ok(Submitted::Pending) => open[user].push((tag, sector, flush)),
                    Ok(_) => prop_assert_eq!(right(sector, flush), Ok(())),
                    Err(VolumeError::Busy) => prop_assert!(open[user].len() >= DEPTH),
                    Err(error) => prop_assert_eq!(right(sector, flush), Err(error)),
                }
            }
            for _ in 0..400 {
                hub.turn();
                collect(&mut users, &mut open);
            }
            prop_assert!(open.iter().all(Vec::is_empty), "{:?}", open);
        }
    }
}
