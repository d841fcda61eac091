//! Text for a terminal. Peers choose names, so nothing of a report is printed before [`harmless`] has seen it.

use serde_json::Value;
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Longest text in characters. The rest is cut.
const LONGEST: usize = 600;
/// Marks without a width of their own that one character may carry.
const MARKS: usize = 2;

/// Text without what moves the cursor, reorders or hides other text: control and formatting characters become U+FFFD,
/// line ends and tabs a space. Stacks of combining marks and long texts are cut.
pub fn harmless(text: &str) -> String {
    let mut clean = String::new();
    let mut marks = 0;
    for (at, c) in text.chars().enumerate() {
        if at == LONGEST {
            clean.push('…');
            break;
        }
        let c = match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() || is_formatting(c) => '\u{fffd}',
            c => c,
        };
        marks = if c.width() == Some(0) { marks + 1 } else { 0 };
        if marks <= MARKS {
            clean.push(c);
        }
    }
    clean
}

/// Characters without a glyph: joiners, directional and interlinear marks, fillers, selectors, tags (Unicode 16,
/// categories Cf, Zl and Zp, and Default_Ignorable_Code_Point).
fn is_formatting(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
        | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Columns of a text on the terminal.
pub fn columns(text: &str) -> usize {
    text.graphemes(true).map(|one| one.width()).sum()
}

/// A text in exactly `width` columns: filled with spaces on the right or the left, or cut with `…`.
pub fn fitted(text: &str, width: usize, to_the_right: bool) -> String {
    let own = columns(text);
    let shown =
        if own <= width { text.to_string() } else { head(text, width.saturating_sub(1)) + "…" };
    let shown = if width == 0 { String::new() } else { shown };
    let room = " ".repeat(width.saturating_sub(columns(&shown)));
    if to_the_right { room + &shown } else { shown + &room }
}

/// The longest start of a text that has at most `width` columns.
fn head(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |one: &&str| {
        used += one.width();
        used <= width
    };
    text.graphemes(true).take_while(fits).collect()
}

/// A text in lines of at most `width` columns, broken at spaces where that is possible.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut rest = word;
        loop {
            let line = lines.last_mut().expect("there is a line");
            let gap = usize::from(!line.is_empty());
            let free = width.saturating_sub(columns(line) + gap);
            if columns(rest) <= free {
                line.push_str(&" ".repeat(gap));
                line.push_str(rest);
                break;
            }
            if gap > 0 {
                lines.push(String::new());
                continue;
            }
            let part = head(rest, width);
            // A character wider than a line does not occur: a line has at least two columns.
            rest = &rest[part.len()..];
            line.push_str(&part);
            lines.push(String::new());
        }
    }
    lines
}

/// A value of a report as text. Nothing for null, a list with commas.
pub fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::Object(_) => value.to_string(),
    };
    harmless(&text)
}

/// A number of bytes with a binary unit.
pub fn bytes(count: f64) -> String {
    let mut count = count;
    let mut unit = 0;
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    while count >= 1024.0 && unit < units.len() - 1 {
        count /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && count < 100.0);
    format!("{count:.digits$} {}", units[unit])
}

/// Seconds as days, hours, minutes and seconds.
pub fn duration(seconds: f64) -> String {
    // Negative and endless durations do not occur in a report that is correct; the cast makes a number of any.
    let s = seconds as u64;
    let days = if s >= 86400 { format!("{} d ", s / 86400) } else { String::new() };
    format!("{days}{:02}:{:02}:{:02}", s / 3600 % 24, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_would_act_on_the_terminal_are_made_harmless() {
        assert_eq!(harmless("a\x1b[2Jb\u{9b}1mc\x7f"), "a\u{fffd}[2Jb\u{fffd}1mc\u{fffd}");
        assert_eq!(harmless("one\r\ntwo\tx"), "one  two x");
        assert_eq!(harmless("a\u{202e}cba\u{200d}"), "a\u{fffd}cba\u{fffd}");
        assert_eq!(harmless(&format!("e{}x", "\u{301}".repeat(50))), "e\u{301}\u{301}x");
        assert_eq!(harmless(&"x".repeat(5000)).chars().count(), LONGEST + 1);
        assert_eq!(harmless("Zürich 東京"), "Zürich 東京");
    }

    #[test]
    fn wide_characters_are_counted_and_never_cut_in_half() {
        assert_eq!(columns("東京"), 4);
        assert_eq!(fitted("東京", 6, false), "東京  ");
        assert_eq!(fitted("東京", 3, false), "東…");
        assert_eq!(fitted("東京", 2, true), " …");
        assert_eq!(fitted("abc", 5, true), "  abc");
        assert_eq!(fitted("abc", 0, true), "");
    }

    #[test]
    fn lines_break_at_spaces_and_inside_long_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrapped("x 東京東京", 4), ["x", "東京", "東京"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn numbers_have_the_units_of_the_page() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(150.0 * 1048576.0), "150 MiB");
        assert_eq!(duration(90061.9), "1 d 01:01:01");
        assert_eq!(shown(&serde_json::json!([1, null, true, "a\u{7}"])), "1, , yes, a\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_text_fits_its_columns(text in any::<String>(), width in 0usize..40) {
            let clean = harmless(&text);
            prop_assert!(!clean.chars().any(char::is_control));
            prop_assert_eq!(columns(&fitted(&clean, width, false)), width);
            for line in wrapped(&clean, width) {
                prop_assert!(columns(&line) <= width.max(2), "{:?}", line);
            }
        }
    }
}
