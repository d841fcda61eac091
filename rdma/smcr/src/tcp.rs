//! Common interface of accepted and outgoing TCP connections, for [`super::connections`].

use core::fmt::Debug;
use drivers::hal::Instant;
use net::Interface;
use net::connector::{ConnectionHandle, Connector};
use net::tcp::{Closed, Listener, Stream};

/// A set of TCP connections.
pub trait Tcp {
    /// Handle of a connection.
    type Name: Copy + Debug + Ord;
    /// As [`Listener::next_news`].
    fn next_news(&mut self, on: &mut Interface) -> Option<Self::Name>;
    /// As [`Listener::read`].
    fn read(&self, on: &mut Interface, name: Self::Name, into: &mut [u8]) -> Result<usize, Closed>;
    /// As [`Listener::write`].
    fn write(&self, on: &mut Interface, name: Self::Name, bytes: &[u8]) -> Result<usize, Closed>;
    /// As [`Listener::room`].
    fn room(&self, on: &mut Interface, name: Self::Name) -> usize;
    /// As [`Listener::make_idle`].
    fn make_idle(&self, on: &mut Interface, name: Self::Name);
    /// As [`Listener::finish`].
    fn finish(&self, on: &mut Interface, name: Self::Name);
    /// Closes a connection with FIN, or with RST if `abort`.
    fn leave(&mut self, on: &mut Interface, name: Self::Name, abort: bool, now: Instant);
    /// Resets all connections that are still open, and stops listening.
    fn stop(self, on: &mut Interface);
}

impl Tcp for Listener {
    type Name = Stream;
    fn next_news(&mut self, on: &mut Interface) -> Option<Stream> {
        Listener::next_news(self, on)
    }
    fn read(&self, on: &mut Interface, name: Stream, into: &mut [u8]) -> Result<usize, Closed> {
        Listener::read(self, on, name, into)
    }
    fn write(&self, on: &mut Interface, name: Stream, bytes: &[u8]) -> Result<usize, Closed> {
        Listener::write(self, on, name, bytes)
    }
    fn room(&self, on: &mut Interface, name: Stream) -> usize {
        Listener::room(self, on, name)
    }
    fn make_idle(&self, on: &mut Interface, name: Stream) {
        Listener::make_idle(self, on, name);
    }
    fn finish(&self, on: &mut Interface, name: Stream) {
        Listener::finish(self, on, name);
    }
    fn leave(&mut self, on: &mut Interface, name: Stream, abort: bool, now: Instant) {
        match abort {
            true => self.abort(on, name, now),
            false => self.close(on, name, now),
        }
    }
    fn stop(self, on: &mut Interface) {
        Listener::stop(self, on);
    }
}

impl Tcp for Connector {
    type Name = ConnectionHandle;
    fn next_news(&mut self, on: &mut Interface) -> Option<ConnectionHandle> {
        Connector::next_news(self, on)
    }
    fn read(
        &self,
        on: &mut Interface,
        name: ConnectionHandle,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        Connector::read(self, on, name, into)
    }
    fn write(
        &self,
        on: &mut Interface,
        name: ConnectionHandle,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        Connector::write(self, on, name, bytes)
    }
    fn room(&self, on: &mut Interface, name: ConnectionHandle) -> usize {
        Connector::room(self, on, name)
    }
    fn make_idle(&self, on: &mut Interface, name: ConnectionHandle) {
        Connector::make_idle(self, on, name);
    }
    fn finish(&self, on: &mut Interface, name: ConnectionHandle) {
        Connector::finish(self, on, name);
    }
    fn leave(&mut self, on: &mut Interface, name: ConnectionHandle, abort: bool, _: Instant) {
        self.close(on, name, abort);
    }
    fn stop(self, on: &mut Interface) {
        Connector::stop(self, on);
    }
}
