//! Writes a release into a slot, piece by piece. The slot gets its header only after the image is complete, matches its
//! signature, and was read back. Any earlier failure leaves the slot empty, and does not change which image boots.

use super::disk_io::DiskIo;
use super::fetch::Fetch;
use crate::gateway::disks::{DiskSlot, Role};
use core::fmt;
use drivers::hal::{Operation, Window};
use release::layout::{self, BLOCK};
use release::{Digest, HEADER, Header, Slot};

/// Bytes of one write or check. A digest of these takes some 50 µs.
pub(super) const PIECE: usize = 16 << 10;

/// Source of a release.
pub(super) enum Source {
    /// An HTTP server.
    Http(Box<Fetch>),
    /// A disk with the release alone: number, reader, and position.
    Disk(usize, DiskIo, u64),
    /// The source was released.
    Ended,
}

/// Step of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Receive the header.
    Header,
    /// Invalidate the slot, and flush.
    Clear,
    ClearFlush,
    /// Write the image.
    Image,
    /// Flush, and read it back.
    ImageFlush,
    Check,
    /// Write the header, and flush.
    Head,
    HeadFlush,
}

/// A release that is being written.
pub(super) struct Install {
    pub source: Source,
    pub slot: Slot,
    key: [u8; 32],
    /// Older releases are refused.
    not_before: u64,
    /// The running release was ready when it was ordered.
    pub was_ready: bool,
    stage: Stage,
    /// Header of the release.
    pub header: Option<Header>,
    buffer: Window,
    /// Bytes in the buffer.
    filled: usize,
    /// Bytes of the image that were written, or read back.
    done: u64,
    digest: Digest,
    /// Tenths of the image that were reported.
    reported: u64,
}

/// Error text.
type Failed = String;

/// Result of a poll.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// Nothing to report.
    Pending,
    /// A line for the console.
    Line(String),
    /// The release is in the slot.
    Written,
}

impl Install {
    pub fn new(
        source: Source,
        slot: Slot,
        key: [u8; 32],
        not_before: u64,
        was_ready: bool,
        buffer: Window,
    ) -> Install {
        Install {
            source,
            slot,
            key,
            not_before,
            was_ready,
            stage: Stage::Header,
            header: None,
            buffer,
            filled: 0,
            done: 0,
            digest: Digest::new(),
            reported: 0,
        }
    }

    /// Whether the disk of the source may still use the buffer.
    pub fn is_reading(&mut self, disks: &mut [DiskSlot]) -> bool {
        let Source::Disk(number, io, _) = &mut self.source else { return false };
        if let Some(slot) = disks.get_mut(*number) {
            let _ = io.poll(&mut slot.disk);
        }
        io.is_busy()
    }

    /// Continues. `io` is on the disk with the slots. An error ends the installation.
    pub fn poll(
        &mut self,
        io: &mut DiskIo,
        target: usize,
        disks: &mut [DiskSlot],
    ) -> Result<Polled, Failed> {
        loop {
            if io.is_busy() {
                let Some(slot) = disks.get_mut(target) else {
                    return Err("the disk is gone".into());
                };
                match io.poll(&mut slot.disk) {
                    None => return Ok(Polled::Pending),
                    Some(Err(why)) => return Err(format!("{} {why}", slot.name)),
                    Some(Ok(())) => {
                        if self.next_step(io)? {
                            return Ok(Polled::Written);
                        }
                    }
                }
                continue;
            }
            match self.stage {
                Stage::Header => {
                    if !self.fill(HEADER, disks)? {
                        return Ok(Polled::Pending);
                    }
                    let line = self.check_header(io)?;
                    self.stage = Stage::Clear;
                    self.buffer.slice(0, BLOCK).unwrap_or(Window::empty()).fill(0);
                    io.begin(Operation::Write, self.place(io), BLOCK);
                    return Ok(Polled::Line(line));
                }
                Stage::Image => {
                    let rest = self.length() - self.done;
                    let piece = rest.min(PIECE as u64) as usize;
                    if !self.fill(piece, disks)? {
                        return Ok(Polled::Pending);
                    }
                    self.digest_piece(piece);
                    let padded = piece.next_multiple_of(BLOCK);
                    if let Some(rest) = self.buffer.slice(piece, padded - piece) {
                        rest.fill(0);
                    }
                    io.begin(Operation::Write, self.place(io) + HEADER as u64 + self.done, padded);
                    self.filled = 0;
                    self.done += piece as u64;
                    let tenth = self.done * 10 / self.length();
                    if core::mem::replace(&mut self.reported, tenth) < tenth {
                        return Ok(Polled::Line(format!("{} %", tenth * 10)));
                    }
                }
                // In all other steps the disk is busy.
                _ => return Ok(Polled::Pending),
            }
        }
    }

    /// Starts the next step after an operation of the disk. True after the last one.
    fn next_step(&mut self, io: &mut DiskIo) -> Result<bool, Failed> {
        match self.stage {
            Stage::Header => {}
            Stage::Clear => {
                self.stage = Stage::ClearFlush;
                io.flush();
            }
            Stage::ClearFlush => self.stage = Stage::Image,
            Stage::Image if self.done < self.length() => {}
            Stage::Image => {
                let header = self.header.as_ref();
                let digest = core::mem::take(&mut self.digest).finish();
                if header.is_none_or(|header| header.digest != digest) {
                    return Err(release::Refusal::Image.to_string());
                }
                self.stage = Stage::ImageFlush;
                io.flush();
            }
            Stage::ImageFlush => {
                (self.stage, self.done) = (Stage::Check, 0);
                self.read_back(io);
            }
            Stage::Check => {
                let piece = (self.length() - self.done).min(PIECE as u64) as usize;
                self.digest_piece(piece);
                self.done += piece as u64;
                if self.done < self.length() {
                    self.read_back(io);
                    return Ok(false);
                }
                let digest = core::mem::take(&mut self.digest).finish();
                let Some(header) = self.header.as_ref().filter(|it| it.digest == digest) else {
                    return Err("the disk returns other data than was written: replace it".into());
                };
                // Cannot fail: the buffer is larger than a header.
                let _ = self.buffer.write(0, &header.emit());
                self.stage = Stage::Head;
                io.begin(Operation::Write, self.place(io), BLOCK);
            }
            Stage::Head => {
                self.stage = Stage::HeadFlush;
                io.flush();
            }
            Stage::HeadFlush => return Ok(true),
        }
        Ok(false)
    }

    fn read_back(&mut self, io: &mut DiskIo) {
        let piece = (self.length() - self.done).min(PIECE as u64) as usize;
        let at = self.place(io) + HEADER as u64 + self.done;
        io.begin(Operation::Read, at, piece.next_multiple_of(BLOCK));
    }

    /// Adds the first bytes of the buffer to the image's digest.
    fn digest_piece(&mut self, piece: usize) {
        let mut bytes = [0; BLOCK];
        let mut at = 0;
        while at < piece {
            let part = bytes.get_mut(..BLOCK.min(piece - at)).unwrap_or_default();
            // Cannot fail: the range is inside the buffer.
            let _ = self.buffer.read(at, part);
            self.digest.update(part);
            at += part.len();
        }
    }

    /// Start of the slot in the partition.
    fn place(&self, io: &DiskIo) -> u64 {
        layout::slot_start(io.length(), self.slot)
    }

    fn length(&self) -> u64 {
        self.header.as_ref().map_or(0, |header| header.length)
    }

    /// Checks the header in the buffer. Returns a line about the release.
    fn check_header(&mut self, io: &DiskIo) -> Result<String, Failed> {
        let mut bytes = [0; HEADER];
        self.buffer.read(0, &mut bytes).map_err(|_| "the buffer is too short".to_string())?;
        self.filled = 0;
        let header = Header::parse(&bytes).map_err(|why| why.to_string())?;
        header.verify(&self.key).map_err(|why| why.to_string())?;
        let room = layout::slot_length(io.length()).saturating_sub(HEADER as u64);
        if header.length > room {
            return Err(format!(
                "the image has {} bytes, but a slot has room for {room}: write the disk anew with a newer `./isthmus image`",
                header.length
            ));
        }
        if header.made < self.not_before {
            return Err(format!(
                "{} is older than the running release, or than another one installed on this disk; `upgrade … force` installs it all the same",
                header.version()
            ));
        }
        let line = format!(
            "{}, {} bytes, into slot {}",
            header.version(),
            header.length,
            self.slot.name()
        );
        self.header = Some(header);
        Ok(line)
    }

    /// Fills the buffer from the source, up to `wanted` bytes. Returns whether they are complete.
    fn fill(&mut self, wanted: usize, disks: &mut [DiskSlot]) -> Result<bool, Failed> {
        let Install { source, buffer, filled, .. } = self;
        match source {
            Source::Http(fetch) => {
                let mut bytes = [0; 4096];
                while *filled < wanted {
                    let part = bytes.get_mut(..(wanted - *filled).min(4096)).unwrap_or_default();
                    let count = fetch.take(part);
                    if count == 0 {
                        break;
                    }
                    buffer
                        .write(*filled, part.get(..count).unwrap_or_default())
                        .map_err(|_| "the buffer is too short".to_string())?;
                    *filled += count;
                }
                if *filled >= wanted {
                    return Ok(true);
                }
                if let Some(why) = fetch.failed() {
                    return Err(why.to_string());
                }
                if fetch.is_complete() && fetch.waiting() == 0 {
                    return Err("the file is shorter than its header says".into());
                }
                Ok(false)
            }
            Source::Disk(number, io, at) => {
                let Some(slot) = disks.get_mut(*number).filter(|slot| slot.role == Role::Release)
                else {
                    return Err("the disk with the release is in other use now".into());
                };
                if !io.is_busy() {
                    io.begin(Operation::Read, *at, wanted.next_multiple_of(BLOCK));
                }
                match io.poll(&mut slot.disk) {
                    None => Ok(false),
                    Some(Err(why)) => Err(format!("{} {why}", slot.name)),
                    Some(Ok(())) => {
                        *at += wanted as u64;
                        *filled = wanted;
                        Ok(true)
                    }
                }
            }
            Source::Ended => Ok(false),
        }
    }
}

impl fmt::Debug for Install {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of slot {}, {} bytes", self.stage, self.slot.name(), self.done)
    }
}
