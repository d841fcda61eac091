//! Copy of the console's output on the screen: the firmware's framebuffer, or a PC's text mode. It shows startup errors
//! and IP addresses where no serial port is present or connected.
//!
//! Such memory is slow: some microseconds for a character. So the screen does not scroll: output continues in the first
//! row after the last one, and the next row is kept empty. Output is buffered, and drawn a few characters at a time,
//! before a halt and with each poll of the console.

use super::paging;
use boot::Screen as Place;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use drivers::hal::{Arena, Mmio, Registers};
use std::sync::OnceLock;

/// Eight rows of eight pixels, the left one in the lowest bit.
static FONT: [[u8; 8]; 128] = font8x8::legacy::BASIC_LEGACY;

/// Pixels of a character, each twice as high as it is wide.
const WIDTH: usize = 8;
const HEIGHT: usize = 16;
const PIXEL: usize = 4;
/// Wider screens have larger characters.
const SMALL: usize = 1920;
/// Largest width and height, in pixels.
const LARGEST: usize = 16 << 10;
/// Grey on black, in text mode.
const ATTRIBUTE: u16 = 7 << 8;

/// The screen.
struct Screen {
    memory: Mmio,
    /// Bytes of a row of pixels, or of characters.
    pitch: usize,
    /// Scale of the font; 0 in text mode.
    scale: usize,
    columns: usize,
    rows: usize,
    /// Characters to show.
    wanted: Box<[AtomicU8]>,
    /// Characters on the screen.
    drawn: Box<[AtomicU8]>,
    /// Cell where drawing continues.
    next: AtomicUsize,
    /// Column of the next character. Only one core writes at a time; a race would only misplace a character.
    column: AtomicUsize,
    /// Row of the next character.
    row: AtomicUsize,
    /// Parser state of a control sequence.
    escape: AtomicU8,
}

static SCREEN: OnceLock<Screen> = OnceLock::new();
/// Whether characters wait to be drawn.
static PENDING: AtomicBool = AtomicBool::new(false);

/// Takes the screen, and clears it. False if it cannot be used.
///
/// # Safety
/// The screen's range holds no memory of the machine, and nothing else uses it.
pub unsafe fn take(place: Place, arena: &mut Arena) -> bool {
    let (pitch, width, height) =
        (place.pitch as usize, place.width as usize, place.height as usize);
    let scale = if place.text { 0 } else { width.div_ceil(SMALL) };
    let (columns, rows, row) = match scale {
        0 => (width, height, width * 2),
        scale => (width / (WIDTH * scale), height / (HEIGHT * scale), width * PIXEL),
    };
    let Some(len) = pitch.checked_mul(height) else { return false };
    let sane = width <= LARGEST && height <= LARGEST && pitch <= LARGEST * 8;
    if !sane || columns == 0 || rows == 0 || row > pitch || !pitch.is_multiple_of(8) {
        return false;
    }
    // SAFETY: the caller promises that nothing else is in the range.
    let Some(memory) = (unsafe { paging::map_registers(place.address, len, arena) }) else {
        return false;
    };
    (0..len / 8).for_each(|n| memory.write64(8 * n, 0));
    let blank = || (0..columns * rows).map(|_| AtomicU8::new(b' ')).collect();
    let screen = Screen {
        memory,
        pitch,
        scale,
        columns,
        rows,
        wanted: blank(),
        drawn: blank(),
        next: AtomicUsize::new(0),
        column: AtomicUsize::new(0),
        row: AtomicUsize::new(0),
        escape: AtomicU8::new(0),
    };
    SCREEN.set(screen).is_ok()
}

/// Buffers console output to be drawn later.
pub fn show(bytes: &[u8]) {
    if let Some(screen) = SCREEN.get() {
        bytes.iter().for_each(|&byte| screen.put(byte));
        PENDING.store(true, Ordering::Relaxed);
    }
}

/// Draws console output at once.
pub fn print(bytes: &[u8]) {
    show(bytes);
    draw(usize::MAX);
}

/// Draws at most `most` characters. Returns whether more may wait.
#[inline]
pub fn draw(most: usize) -> bool {
    PENDING.load(Ordering::Relaxed) && draw_some(most)
}

#[cold]
fn draw_some(most: usize) -> bool {
    let pending = SCREEN.get().is_some_and(|screen| screen.draw(most));
    PENDING.store(pending, Ordering::Relaxed);
    pending
}

impl Screen {
    fn put(&self, byte: u8) {
        let at = |cell: &AtomicUsize| cell.load(Ordering::Relaxed);
        let set = |cell: &AtomicUsize, value| cell.store(value, Ordering::Relaxed);
        match (self.escape.load(Ordering::Relaxed), byte) {
            // ECMA-48: ESC [, parameters, and a final byte. Only ED (erase display) takes effect.
            (0, 0x1b) => return self.escape.store(1, Ordering::Relaxed),
            (0, _) => {}
            (1, b'[') => return self.escape.store(2, Ordering::Relaxed),
            (2, b'0'..=b'?') => return,
            (_, last) => {
                self.escape.store(0, Ordering::Relaxed);
                if last == b'J' {
                    (0..self.rows).for_each(|row| self.wipe(row));
                    set(&self.row, 0);
                    set(&self.column, 0);
                }
                return;
            }
        }
        match byte {
            b'\r' => set(&self.column, 0),
            b'\n' => self.next_row(),
            8 => set(&self.column, at(&self.column).saturating_sub(1)),
            // Control characters, and continuation bytes of UTF-8.
            ..b' ' | 0x7f..=0xbf => {}
            _ => {
                if at(&self.column) >= self.columns {
                    set(&self.column, 0);
                    self.next_row();
                }
                let cell = at(&self.row) * self.columns + at(&self.column);
                self.wanted[cell].store(if byte < 0x80 { byte } else { b'?' }, Ordering::Relaxed);
                set(&self.column, at(&self.column) + 1);
            }
        }
    }

    fn next_row(&self) {
        let row = (self.row.load(Ordering::Relaxed) + 1) % self.rows;
        self.row.store(row, Ordering::Relaxed);
        self.wipe(row);
        self.wipe((row + 1) % self.rows);
    }

    fn wipe(&self, row: usize) {
        let cells = &self.wanted[row * self.columns..(row + 1) * self.columns];
        cells.iter().for_each(|cell| cell.store(b' ', Ordering::Relaxed));
    }

    fn draw(&self, most: usize) -> bool {
        let mut left = most;
        let mut at = self.next.load(Ordering::Relaxed);
        for _ in 0..self.wanted.len() {
            let wanted = self.wanted[at].load(Ordering::Relaxed);
            if self.drawn[at].load(Ordering::Relaxed) != wanted {
                if left == 0 {
                    self.next.store(at, Ordering::Relaxed);
                    return true;
                }
                left -= 1;
                self.draw_one(at / self.columns, at % self.columns, wanted);
                self.drawn[at].store(wanted, Ordering::Relaxed);
            }
            at = if at + 1 == self.wanted.len() { 0 } else { at + 1 };
        }
        false
    }

    fn draw_one(&self, row: usize, column: usize, character: u8) {
        if self.scale == 0 {
            let at = row * self.pitch + 2 * column;
            return self.memory.write16(at, ATTRIBUTE | u16::from(character));
        }
        let glyph = &FONT[usize::from(character & 0x7f)];
        let (width, height) = (WIDTH * self.scale, HEIGHT * self.scale);
        for y in 0..height {
            let bits = glyph[y / (2 * self.scale)];
            let lit = |x: usize| if bits >> (x / self.scale) & 1 != 0 { 0xff_ffff } else { 0u64 };
            let start = (row * height + y) * self.pitch + column * width * PIXEL;
            for x in (0..width).step_by(2) {
                self.memory.write64(start + x * PIXEL, lit(x) | lit(x + 1) << 32);
            }
        }
    }
}
