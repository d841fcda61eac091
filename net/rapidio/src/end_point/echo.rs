//! The echo service: what is said on a channel is said back, byte by byte. A stock peer may say no more than 128
//! messages ahead of what it hears back: what finds no room at its end is lost there.
//!
//! Most of it goes back from the memory in which it has arrived, by the end point ([`Engine::send_back`]); here is what
//! has to wait.

use crate::rio_cm::{self, Engine, HEADER, MOST};
use crate::rionet::SharedPort;
use crate::tap::Tap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Instant, Packet};

/// Channels at a time: who asks for one more waits until one is closed, or gives up.
const MOST_CHANNELS: usize = 128;

/// The service.
pub struct Echo {
    /// The channel that is asked for it.
    listener: u16,
    /// Somebody may have asked, and was not accepted yet.
    is_asked: bool,
    channels: Vec<u16>,
    /// Channels that may have something to be said back.
    busy: Vec<u16>,
    message: Box<[u8; MOST]>,
    count: u64,
}

impl Echo {
    /// On a channel of this number.
    pub fn new(listener: u16, channels: &mut Engine) -> Self {
        // There is no other channel yet that could have the number.
        let _ = channels.listen(listener);
        Echo {
            listener,
            is_asked: false,
            channels: Vec::with_capacity(MOST_CHANNELS),
            busy: Vec::with_capacity(MOST_CHANNELS),
            message: Box::new([0; MOST]),
            count: 0,
        }
    }

    /// Messages said back.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Channels that are connected.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// A message was said back at once.
    pub fn said_back(&mut self) {
        self.count += 1;
    }

    /// Takes news of a channel; false if they are not of this service's.
    pub fn hear(&mut self, number: u16) -> bool {
        if number == self.listener {
            self.is_asked = true;
            return true;
        }
        let is_ours = self.channels.contains(&number);
        if is_ours && !self.busy.contains(&number) {
            self.busy.push(number);
        }
        is_ours
    }

    /// Accepts who asks; how much was done. What is to be said of that goes ahead of any data.
    pub fn accept(&mut self, engine: &mut Engine, now: Instant) -> usize {
        let mut done = 0;
        while self.is_asked && self.channels.len() < MOST_CHANNELS {
            match engine.accept(self.listener, now) {
                Ok(Some((number, _))) => {
                    done += 1;
                    self.channels.push(number);
                    engine.send_back(number);
                }
                Ok(None) => self.is_asked = false,
                // There are as many channels as there can be.
                Err(_) => break,
            }
        }
        done
    }

    /// Says back what was said, as long as there is room; how much was done.
    pub fn answer(&mut self, engine: &mut Engine, port: &SharedPort, tap: &Tap) -> usize {
        let mut done = 0;
        let Echo { channels, busy, message, count, .. } = self;
        busy.retain(|&number| {
            loop {
                if !port.borrow().has_room(rio_cm::MAILBOX, 1) {
                    return true;
                }
                // News tell when there is some.
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
                        // Whoever has closed the channel does not wait for the rest.
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
