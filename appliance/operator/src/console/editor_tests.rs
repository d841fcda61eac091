//! Tests of the line editor: keystrokes in, a screen out.

use super::*;
use proptest::prelude::*;

/// A terminal of endless width: CR, LF, BS and characters.
#[derive(Default)]
struct Screen {
    rows: Vec<Vec<u8>>,
    column: usize,
}

impl Screen {
    fn show(bytes: &[u8]) -> Screen {
        let mut screen = Screen { rows: vec![vec![]], column: 0 };
        for &byte in bytes {
            let row = screen.rows.last_mut().unwrap();
            match byte {
                b'\r' => screen.column = 0,
                b'\n' => screen.rows.push(vec![]),
                8 => screen.column = screen.column.checked_sub(1).expect("left of the screen"),
                c => {
                    row.resize(row.len().max(screen.column + 1), b' ');
                    row[screen.column] = c;
                    screen.column += 1;
                }
            }
        }
        screen
    }

    fn last_row(&self) -> String {
        String::from_utf8(self.rows.last().unwrap().clone()).unwrap().trim_end().to_string()
    }
}

/// Types `bytes`. Returns the events, the last row of the screen, and the cursor's column after the prompt.
fn typed(bytes: &[u8]) -> (Vec<Event>, String, usize) {
    let (mut editor, mut out) = (Editor::default(), Output::default());
    editor.draw(&mut out);
    let mut events = Vec::new();
    for &byte in bytes {
        if let Some(event) = editor.push(byte, &mut out) {
            events.push(event);
            editor.draw(&mut out);
        }
    }
    out.bytes_for_test(|sent| {
        let screen = Screen::show(sent);
        let row = screen.last_row();
        let line = row.strip_prefix(PROMPT.trim_end()).expect("the prompt stands first");
        (events, line.trim_start().to_string(), screen.column - PROMPT.len())
    })
}

#[test]
fn keystrokes_edit_the_shown_line() {
    let cases: [(&[u8], &str, usize); 14] = [
        (b"abc", "abc", 3),
        (b"abc\x1b[D\x1b[DX", "aXbc", 2),
        (b"abc\x01X\x05Y", "XabcY", 5),
        (b"abc\x7f\x7fX", "aX", 2),
        (b"abc\x1b[H\x1b[3~", "bc", 0),
        (b"show log\x17x", "show x", 6),
        (b"show  \x17", "", 0),
        (b"abcdef\x1b[D\x1b[D\x15", "ef", 0),
        (b"abcdef\x1b[D\x1b[D\x0b", "abcd", 4),
        (b"abc\x03de", "de", 2),
        (b"one\rtwo\r\x1b[A\x1b[A", "one", 3),
        (b"one\rtwo\rdraft\x1b[A\x1b[A\x1b[B\x1b[B", "draft", 5),
        (b"one\rone\r\x1b[A\x1b[A", "one", 3),
        (b"\x1b[D\x1b[C\x7f\x1b[3~\x15\x0b\x17\x1b[A\x1b[B", "", 0),
    ];
    for (keys, line, cursor) in cases {
        let (_, shown, column) = typed(keys);
        assert_eq!(
            (shown.as_str(), column),
            (line, cursor),
            "{:?}",
            keys.escape_ascii().to_string()
        );
    }
}

#[test]
fn lines_end_in_cr_lf_or_both() {
    let (events, _, _) = typed(b"a\rb\nc\r\nd\n");
    assert_eq!(events, ["a", "b", "c", "d"].map(|l| Event::Line(l.into())));
}

#[test]
fn overlong_or_binary_line_is_refused_once() {
    let mut long = vec![b'x'; 64 << 10];
    long.extend(b"\rshow log\r");
    let (events, ..) = typed(&long);
    assert!(matches!(events[0], Event::Refused(why) if why.contains("16384")));
    assert_eq!(events[1..], [Event::Line("show log".into())]);
    let (events, ..) = typed(b"power\xffoff\rhelp\r");
    assert!(matches!(events[0], Event::Refused(_)) && events[1] == Event::Line("help".into()));
}

#[test]
fn private_key_is_shown_as_stars_and_not_kept_in_the_history() {
    let pem = "-----BEGIN PRIVATE KEY----- PEM0 -----END PRIVATE KEY-----";
    let typed_key = format!("set http.key {pem}");
    let (_, shown, column) = typed(typed_key.as_bytes());
    assert_eq!(shown, format!("set http.key {}", "*".repeat(pem.len())));
    assert_eq!(column, typed_key.len());
    // Moving the cursor or editing the words before the key does not reveal it.
    for keys in ["\x01\x1b[C\x1b[C\x05", "\x01\x1b[3~", "\x01x", "\x7f\x7f\x01\x05"] {
        let (_, shown, _) = typed(format!("{typed_key}{keys}").as_bytes());
        assert!(!shown.contains("PEM0") && shown.contains("***"), "{shown}");
    }
    let (events, shown, _) = typed(format!("show log\r{typed_key}\r\x1b[A").as_bytes());
    assert_eq!(events[1], Event::Line(typed_key.clone()), "the command is executed");
    assert_eq!(shown, "show log");
    let (_, shown, _) = typed(format!("{typed_key}\x15show log").as_bytes());
    assert_eq!(shown, "show log", "a new line begins");
    for secret in ["set http.token_sha256 4e73", "set system.upgrade_key 19bf", "set http.kye x"] {
        let (_, shown, _) = typed(format!("show log\r{secret}\r\x1b[A").as_bytes());
        assert_eq!(shown, "show log");
    }
}

#[test]
fn private_key_pasted_line_by_line_is_not_executed() {
    let paste =
        b"-----BEGIN EC PRIVATE KEY-----\rMHcCAQEEIIJ\rjgQ==\r-----END EC PRIVATE KEY-----\r";
    let (events, shown, _) = typed(&[paste, &b"show log"[..]].concat());
    let nothing = Event::Line(String::new());
    assert_eq!(events[..3], [nothing.clone(), nothing.clone(), nothing]);
    assert!(matches!(events[3], Event::Refused(why) if why.contains("one line")));
    assert_eq!((events.len(), shown.as_str()), (4, "show log"));
    // A line that cannot be part of a key ends it, as Ctrl-C does.
    let (events, ..) = typed(b"-----BEGIN PRIVATE KEY-----\rshow log\rshow log\r");
    assert!(matches!(events[1], Event::Refused(_)) && events[2] == Event::Line("show log".into()));
    let (events, ..) = typed(b"-----BEGIN PRIVATE KEY-----\r\x03help\r");
    assert_eq!(events[1], Event::Line("help".into()));
}

#[test]
fn certificate_chain_fits_in_a_line_and_is_freed_afterwards() {
    let (mut editor, mut out) = (Editor::default(), Output::default());
    let line = format!("set http.certificate {}", "MIIB ".repeat(2000));
    let events: Vec<Event> = format!("{line}\r")
        .bytes()
        .filter_map(|byte| {
            out.sent(usize::MAX);
            editor.push(byte, &mut out)
        })
        .collect();
    assert_eq!(events, [Event::Line(line)]);
    assert!(editor.history.is_empty() && editor.line.capacity() <= USUAL, "nothing is kept");
}

proptest! {
    #[test]
    fn screen_shows_the_line_after_any_keystrokes(
        keys in prop::collection::vec(prop_oneof![
            5 => "[a-d ]".prop_map(String::into_bytes),
            3 => prop::sample::select(vec![
                "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F", "\x1b[3~", "\x7f",
                "\x15", "\x17", "\x0b", "\r", "\x03",
            ]).prop_map(|k| k.as_bytes().to_vec()),
        ], 0..60),
    ) {
        let keys = keys.concat();
        let (mut editor, mut out) = (Editor::default(), Output::default());
        for &byte in &keys {
            editor.push(byte, &mut out);
        }
        // The caller draws the prompt after a line end, so compare with the output of `typed`.
        let (_, line, column) = typed(&keys);
        let held = String::from_utf8(editor.line.clone()).unwrap();
        prop_assert_eq!((line.trim(), column), (held.trim(), editor.cursor));
    }

    #[test]
    fn noise_neither_panics_nor_grows_memory(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let (mut editor, mut out) = (Editor::default(), Output::default());
        for byte in bytes {
            editor.push(byte, &mut out);
            prop_assert!(editor.line.len() <= MAX_LINE && editor.history.len() <= HISTORY);
            out.sent(usize::MAX);
        }
    }
}
