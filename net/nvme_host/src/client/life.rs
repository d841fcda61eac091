//! Life of the paths: opening, adoption of their namespace, failure, timers, and the end.

use super::{Action, Client, Notice};
use crate::controller::{Life, News, Path, Random, Tcp};
use crate::failure::Failure;
use crate::request::Error;
use drivers::hal::Instant;

/// Most doublings of the delay before a path is opened again.
const DOUBLINGS: u32 = 3;

impl<T: Copy> Client<T> {
    /// The next thing that the caller has to do with its connections.
    pub fn next_action(&mut self, now: Instant) -> Option<Action> {
        let (queues, is_ended) = (self.queues(), self.is_ended);
        for (number, path) in self.paths.iter_mut().enumerate() {
            let first = number * queues;
            for (queue, one) in path.queues.iter_mut().enumerate() {
                if let Some(abort) = one.to_close.take() {
                    return Some(Action::Close { connection: first + queue, abort });
                }
            }
            if matches!(path.life, Life::Down(at) if at <= now) && !is_ended {
                path.open(now);
            }
            for (queue, one) in path.queues.iter_mut().enumerate() {
                if one.tcp == Tcp::Wanted {
                    one.tcp = Tcp::Opening;
                    let beside = (queue > 0).then_some(first);
                    let path = number as u16;
                    return Some(Action::Connect { connection: first + queue, path, beside });
                }
            }
        }
        None
    }

    /// The TCP connection is open.
    pub fn connected(&mut self, connection: usize) {
        let (path, queue) = self.place(connection);
        let digests = self.shared.settings.digests;
        if let Some(path) = self.paths.get_mut(path) {
            path.connected(queue, digests);
        }
    }

    /// The TCP connection could not be opened, or has ended.
    pub fn closed(&mut self, connection: usize, failure: Failure, now: Instant) {
        let (path, queue) = self.place(connection);
        match self.paths.get_mut(path) {
            Some(one) if matches!(one.life, Life::Leaving(_)) => one.reset(now, true),
            _ => self.fail(path, failure, now),
        }
        let queue = self.paths.get_mut(path).and_then(|path| path.queues.get_mut(queue));
        if let Some(queue) = queue {
            queue.to_close = None;
        }
    }

    /// Ends a path. Its requests are sent again.
    pub(super) fn fail(&mut self, path: usize, failure: Failure, now: Instant) {
        let reconnect = self.shared.settings.reconnect;
        let Some(one) = self.paths.get_mut(path).filter(|one| !one.is_down()) else { return };
        // A controller that accepts connections and ends them at once is not asked again at once.
        let lasted = matches!(one.life, Life::Ready(since) if since + reconnect <= now);
        one.attempts = if lasted { 0 } else { one.attempts.saturating_add(1) };
        let delay = match one.attempts {
            0 => core::time::Duration::ZERO,
            attempts => reconnect * (1 << (attempts - 1).min(DOUBLINGS)),
        };
        one.last_failure = Some(failure);
        one.reset(now + delay, true);
        self.take_back(path, now);
        self.note_loss(path);
        self.stats.failures += 1;
        self.notice(Notice::Down { path: path as u16, why: failure });
        self.timer = Some(now);
    }

    /// Compares the namespace of a path with that of the others, and adopts its size.
    fn adopt(&mut self, path: usize) -> Result<(), Failure> {
        let Some(one) = self.paths.get(path) else { return Ok(()) };
        let (Some(described), Some(controller)) = (one.namespace, one.controller) else {
            return Err(Failure::Protocol("it did not describe its namespace"));
        };
        let abilities = *self.abilities.get_or_insert(controller);
        let mut namespace = self.namespace.unwrap_or(described);
        described.continues(&namespace)?;
        let lacks = |had: bool, has: bool| had && !has;
        if lacks(abilities.deallocate, controller.deallocate)
            || lacks(abilities.zeroes, controller.zeroes)
        {
            return Err(Failure::Changed("it lacks Dataset Management or Write Zeroes now"));
        }
        // The size that all paths know.
        let others = self.paths.iter().filter(|path| path.is_ready());
        let known = others.filter_map(|path| path.namespace).map(|namespace| namespace.blocks);
        let blocks = known.chain([described.blocks]).min().unwrap_or(0);
        if blocks > namespace.blocks {
            let before = namespace.size();
            namespace.blocks = blocks;
            self.notice(Notice::Grown { before, now: namespace.size() });
        } else if described.blocks > namespace.blocks {
            // The others read theirs.
            let others = self.paths.iter_mut().enumerate().filter(|(number, _)| *number != path);
            for (_, other) in others.filter(|(_, other)| other.is_ready()) {
                let is_behind = other.namespace.is_some_and(|it| it.blocks < described.blocks);
                other.pending.namespace |= is_behind;
            }
        }
        self.namespace = Some(namespace);
        let settings = &self.shared.settings;
        let cached = abilities.cache || controller.cache;
        if let Some(abilities) = &mut self.abilities {
            abilities.cache = cached;
            self.geometry =
                namespace.geometry(abilities, settings.read_only, settings.write_through);
        }
        Ok(())
    }

    /// Handles news of a path.
    fn take_news(&mut self, path: usize, news: News, now: Instant) -> Result<(), Failure> {
        match news {
            News::Ready => {
                self.adopt(path)?;
                let shared = &self.shared;
                if let Some(one) = self.paths.get_mut(path) {
                    one.set_ready(shared, now);
                }
                self.stats.connects += 1;
                self.notice(Notice::Up { path: path as u16 });
                self.release_held(Some(path as u16), now);
            }
            News::Described => self.adopt(path)?,
            News::Access => {}
            News::ShutDown => {
                if let Some(one) = self.paths.get_mut(path) {
                    one.reset(now, false);
                }
                return Ok(());
            }
        }
        self.note_access(path, now);
        Ok(())
    }

    /// Runs timers, continues what the paths do, and what the user has asked for.
    pub fn poll(&mut self, random: Random<'_>, now: Instant) {
        if core::mem::take(&mut self.is_giving_up) {
            self.end_requests(Failure::GivenUp, now);
        }
        if self.unsettled_until.is_some_and(|until| until <= now) {
            self.unsettled_until = None;
        }
        for path in 0..self.paths.len() {
            let shared = &self.shared;
            let Some(one) = self.paths.get_mut(path) else { break };
            if matches!(one.life, Life::Leaving(end) if end <= now) {
                one.reset(now, true);
                continue;
            }
            let advanced = one.advance(shared, random, now);
            let result = advanced.and_then(|news| match news {
                Some(news) => self.take_news(path, news, now),
                None => Ok(()),
            });
            if let Err(failure) = result {
                self.fail(path, failure, now);
            }
        }
        self.release_held(None, now);
        let is_down = !self.paths.iter().any(Path::is_usable);
        let has_new = is_down && self.stamped < self.turn;
        if self.timer.is_some_and(|at| at <= now) || has_new {
            self.timer = None;
            self.end_silent(now);
            let expires = self.expire(now);
            self.timer = Instant::first([self.timer, expires]);
        }
    }

    /// Ends the paths with a request whose completion is overdue, and sets the timer for the others.
    fn end_silent(&mut self, now: Instant) {
        let keepalive = self.shared.settings.keepalive;
        for slot in 0..self.slots.len() as u16 {
            let Some(active) = self.active(slot) else { continue };
            let (Some(place), end) = (active.on, active.sent_at + keepalive) else { continue };
            if end <= now {
                self.fail(place.path.into(), Failure::Silent, now);
            } else {
                self.timer = Instant::first([self.timer, Some(end)]);
            }
        }
    }

    /// Fails all requests. Paths that carry one end.
    fn end_requests(&mut self, failure: Failure, now: Instant) {
        for path in 0..self.paths.len() {
            if self.paths.get(path).is_some_and(|one| one.in_flight() > 0) {
                self.fail(path, failure, now);
                self.unsettled_until = Some(now + self.shared.settings.keepalive);
            }
        }
        let held = core::mem::take(&mut self.held);
        held.into_iter().for_each(|slot| self.finish(slot, Err(Error::Io)));
        while let Some(slot) = self.waiting.pop_front().or_else(|| self.flushes.pop_front()) {
            self.finish(slot, Err(Error::Io));
        }
    }

    /// Ends the client: fails the requests in flight, and shuts the controllers down. Poll it until [`Client::is_over`].
    pub fn end(&mut self, now: Instant) {
        self.is_ended = true;
        self.end_requests(Failure::GivenUp, now);
        for path in &mut self.paths {
            if !matches!(path.life, Life::Leaving(_)) && !path.shut_down(now) {
                path.reset(now, true);
            }
        }
    }

    /// Whether an ended client has no connection any more.
    pub fn is_over(&self) -> bool {
        let is_closed = |path: &Path| {
            path.is_down() && path.queues.iter().all(|queue| queue.to_close.is_none())
        };
        self.is_ended && self.paths.iter().all(is_closed)
    }

    /// When [`Client::poll`] or [`Client::next_action`] is due without an event of a connection.
    pub fn deadline(&self) -> Option<Instant> {
        let mut next = Instant::first([self.timer, self.unsettled_until]);
        for path in &self.paths {
            let acts = |queue: &crate::controller::Queue| {
                queue.to_close.is_some() || queue.tcp == Tcp::Wanted
            };
            let due = match path.life {
                _ if path.queues.iter().any(acts) => Some(Instant::ZERO),
                Life::Down(at) => Some(at).filter(|_| !self.is_ended),
                _ => path.deadline(),
            };
            next = Instant::first([next, due]);
        }
        let held = self.held.iter().filter_map(|slot| self.slot(*slot)?.held).map(|(at, _)| at);
        let at_once = self.is_giving_up.then_some(Instant::ZERO);
        Instant::first([next, held.min(), at_once])
    }
}
