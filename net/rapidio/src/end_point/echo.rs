//! The echo service: returns every message of a channel unchanged. A stock peer must not have more than 128 messages
//! outstanding, because its side drops messages that exceed its queue.
//!
//! The end point returns most messages from the memory in which they arrived ([`Engine::send_back`]). This file handles
//! those that have to wait.

use crate::rio_cm::{self, Engine, HEADER, MOST};
use crate::rionet::SharedPort;
use crate::tap::Tap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Instant, Packet};

/// Maximum number of channels. Further requests wait until a channel is closed, or time out.
const MOST_CHANNELS: usize = 128;

/// The service.
pub struct Echo {
    /// The listening channel.
    listener: u16,
    /// Connect requests may wait on the listening channel.
    has_requests: bool,
    channels: Vec<u16>,
    /// Channels that may have messages to return.
    busy: Vec<u16>,
    message: Box<[u8; MOST]>,
    count: u64,
}

impl Echo {
    /// Listens on channel `listener`.
    pub fn new(listener: u16, channels: &mut Engine) -> Self {
        // Cannot fail: no channel exists yet.
        let _ = channels.listen(listener);
        Echo {
            listener,
            has_requests: false,
            channels: Vec::with_capacity(MOST_CHANNELS),
            busy: Vec::with_capacity(MOST_CHANNELS),
            message: Box::new([0; MOST]),
            count: 0,
        }
    }

    /// Number of messages returned.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of connected channels.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Counts a message that the end point has returned.
    pub fn count_returned(&mut self) {
        self.count += 1;
    }

    /// Handles an event of a channel; false if the channel is not this service's.
    pub fn on_event(&mut self, number: u16) -> bool {
        if number == self.listener {
            self.has_requests = true;
            return true;
        }
        let is_ours = self.channels.contains(&number);
        if is_ours && !self.busy.contains(&number) {
            self.busy.push(number);
        }
        is_ours
    }

    /// Accepts connect requests; their number. Their acknowledgements are sent ahead of any data.
    pub fn accept(&mut self, engine: &mut Engine, now: Instant) -> usize {
        let mut done = 0;
        while self.has_requests && self.channels.len() < MOST_CHANNELS {
            match engine.accept(self.listener, now) {
                Ok(Some((number, _))) => {
                    done += 1;
                    self.channels.push(number);
                    engine.send_back(number);
                }
                Ok(None) => self.has_requests = false,
                // The engine's limit of channels is reached.
                Err(_) => break,
            }
        }
        done
    }

    /// Returns waiting messages, as long as the port has room. The number of messages and closed channels.
    pub fn return_messages(&mut self, engine: &mut Engine, port: &SharedPort, tap: &Tap) -> usize {
        let mut done = 0;
        let Echo { channels, busy, message, count, .. } = self;
        busy.retain(|&number| {
            loop {
                if !port.borrow().has_room(rio_cm::MAILBOX, 1) {
                    return true;
                }
                // An event reports new credit.
                if !engine.has_credit(number) {
                    return false;
                }
                let taken = engine.receive(number, |bytes| {
                    let length = bytes.len().min(MOST - HEADER);
                    message[HEADER..HEADER + length].copy_from_slice(&bytes[..length]);
                    length
                });
                match taken {
                    Ok(Some(length)) => {
                        done += 1;
                        // The peer has closed the channel, and does not wait for the rest.
                        let Ok((to, header)) = engine.header(number, length) else { continue };
                        message[..HEADER].copy_from_slice(&header);
                        let header = &message[..HEADER + length];
                        tap.sent(to, rio_cm::MAILBOX, header);
                        let packet = Packet { header, payload: &[], trailer: &[] };
                        let sent = port.borrow_mut().send(rio_cm::MAILBOX, to, &packet);
                        *count += u64::from(sent.is_ok());
                    }
                    Ok(None) => return false,
                    Err(_) => {
                        done += 1;
                        engine.finish(number);
                        engine.close(number);
                        channels.retain(|channel| *channel != number);
                        return false;
                    }
                }
            }
        });
        done
    }
}
