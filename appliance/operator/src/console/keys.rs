//! Decodes bytes to keys: ASCII, control characters, and the escape sequences of VT100, xterm and the Linux console
//! (ECMA-48 CSI, SS3).

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A visible ASCII character, or a space.
    Char(u8),
    /// End of the line (CR, LF, or both).
    Enter,
    /// Tab.
    Tab,
    /// Ctrl-C.
    Interrupt,
    /// One character to the left.
    Left,
    /// One character to the right.
    Right,
    /// Start of the line.
    Home,
    /// End of the line.
    End,
    /// Earlier line of the history.
    Up,
    /// Later line of the history.
    Down,
    /// Removes the character before the cursor.
    Backspace,
    /// Removes the character under the cursor.
    Delete,
    /// Removes everything before the cursor (Ctrl-U).
    KillBefore,
    /// Removes everything from the cursor on (Ctrl-K).
    KillAfter,
    /// Removes the word before the cursor (Ctrl-W).
    KillWord,
    /// Clears the screen (Ctrl-L).
    Clear,
    /// A byte that is not valid in a line.
    Noise,
}

/// Decodes keys byte by byte.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    after_cr: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Ground,
    Escape,
    /// In a control sequence, with its first parameter.
    Csi(u8),
    Ss3,
}

impl Decoder {
    /// Takes a byte. Returns a key if the byte completes one.
    pub fn push(&mut self, byte: u8) -> Option<Key> {
        let after_cr = core::mem::replace(&mut self.after_cr, byte == b'\r');
        match core::mem::take(&mut self.state) {
            State::Ground => {}
            State::Escape => {
                match byte {
                    b'[' => self.state = State::Csi(0),
                    b'O' => self.state = State::Ss3,
                    _ => {}
                }
                // Line ends and Ctrl-C are still decoded, so that a lone ESC cannot swallow them.
                if byte >= b' ' {
                    return None;
                }
            }
            State::Csi(parameter) => match byte {
                b'0'..=b'9' => {
                    let digit = byte - b'0';
                    self.state = State::Csi(parameter.saturating_mul(10).saturating_add(digit));
                    return None;
                }
                b' '..=b'?' => {
                    self.state = State::Csi(parameter);
                    return None;
                }
                b'~' => return tilde(parameter),
                b'@'..=b'}' => return letter(byte),
                _ => {}
            },
            State::Ss3 => {
                if byte >= b' ' {
                    return letter(byte);
                }
            }
        }
        self.ground(byte, after_cr)
    }

    fn ground(&mut self, byte: u8, after_cr: bool) -> Option<Key> {
        Some(match byte {
            b' '..=b'~' => Key::Char(byte),
            b'\n' if after_cr => return None,
            b'\r' | b'\n' => Key::Enter,
            b'\t' => Key::Tab,
            0x01 => Key::Home,
            0x02 => Key::Left,
            0x03 => Key::Interrupt,
            0x04 => Key::Delete,
            0x05 => Key::End,
            0x06 => Key::Right,
            0x08 | 0x7f => Key::Backspace,
            0x0b => Key::KillAfter,
            0x0c => Key::Clear,
            0x0e => Key::Down,
            0x10 => Key::Up,
            0x15 => Key::KillBefore,
            0x17 => Key::KillWord,
            0x1b => {
                self.state = State::Escape;
                return None;
            }
            // Fill characters of slow terminals.
            0x00 => return None,
            _ => Key::Noise,
        })
    }
}

fn letter(byte: u8) -> Option<Key> {
    Some(match byte {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        _ => return None,
    })
}

fn tilde(parameter: u8) -> Option<Key> {
    Some(match parameter {
        1 | 7 => Key::Home,
        3 => Key::Delete,
        4 | 8 => Key::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut decoder = Decoder::default();
        bytes.iter().filter_map(|&b| decoder.push(b)).collect()
    }

    #[test]
    fn sequences_of_several_terminals_are_decoded() {
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[1;5C"), [Key::Up, Key::Down, Key::Right]);
        assert_eq!(keys(b"\x1b[H\x1b[1~\x1bOH\x1b[7~"), [Key::Home; 4]);
        assert_eq!(keys(b"\x1b[3~\x1b[F\x1b[4~"), [Key::Delete, Key::End, Key::End]);
    }

    #[test]
    fn unknown_sequences_are_swallowed_whole() {
        assert_eq!(keys(b"\x1b[200~a\x1b[?25lb\x1bxc\x1b[999999999Zd"), b"abcd".map(Key::Char));
    }

    #[test]
    fn line_end_is_decoded_within_a_broken_sequence() {
        assert_eq!(keys(b"\x1b\r\x1b[1\r\x1bO\x03"), [Key::Enter, Key::Enter, Key::Interrupt]);
    }

    #[test]
    fn crlf_is_one_line_end() {
        assert_eq!(keys(b"\r\n\r\n\n\r"), [Key::Enter; 4]);
    }
}
