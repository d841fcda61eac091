//! A client's vfio-user connection: receives messages with their file descriptors, and sends replies.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::slice;

use anyhow::{Context, Result, anyhow};
use models::Nanoseconds;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::device::{Answer, Device};
use crate::message::{LONGEST, Message};

/// Most file descriptors of a message, as advertised to the client (`max_msg_fds`).
const MOST_FILES: usize = 16;

/// The connection between a device and its client.
pub struct Connection {
    stream: UnixStream,
    /// Received bytes that are not parsed yet: the first `filled`.
    buffer: Vec<u8>,
    filled: usize,
    files: Vec<OwnedFd>,
}

impl Connection {
    /// Takes over a stream.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, buffer: vec![0; LONGEST], filled: 0, files: Vec::new() })
    }

    /// The stream's file descriptor, for poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Handles the received messages. Returns false when the client has disconnected.
    pub fn serve(&mut self, device: &mut Device, now: impl Fn() -> Nanoseconds) -> Result<bool> {
        loop {
            match self.receive() {
                Ok(0) => return Ok(false),
                Ok(count) => self.filled += count,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error).context("could not receive"),
            }
            let mut used = 0;
            let first =
                |bytes| Message::first(bytes).map_err(|what| anyhow!("the client sent {what}"));
            while let Some(message) = first(&self.buffer[used..self.filled])? {
                used += message.size();
                // The kernel ends a read after a message with files, so they belong to the last message.
                let files =
                    if used == self.filled { std::mem::take(&mut self.files) } else { Vec::new() };
                if let Some(reply) = device.handle(&message, files, now()) {
                    self.stream.set_nonblocking(false)?;
                    match send(&self.stream, &reply) {
                        // The client disconnected before the reply: other clients stay.
                        Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
                        sent => sent.context("could not answer")?,
                    }
                    self.stream.set_nonblocking(true)?;
                }
            }
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used;
        }
    }

    fn receive(&mut self) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.buffer[self.filled..])];
        let received = recvmsg(&self.stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        Ok(received.bytes)
    }
}

fn send(stream: &UnixStream, answer: &Answer) -> rustix::io::Result<()> {
    let file = answer.file.as_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = 0;
    while sent < answer.bytes.len() {
        let mut control = SendAncillaryBuffer::new(&mut space);
        // The file descriptor is sent with the first byte.
        if let Some(file) = file.as_ref().filter(|_| sent == 0) {
            // `space` has room for one.
            control.push(SendAncillaryMessage::ScmRights(slice::from_ref(file)));
        }
        let rest = [IoSlice::new(&answer.bytes[sent..])];
        sent += sendmsg(stream, &rest, &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}
