//! Formatting of numbers for people.

/// Formats a number with separated thousands, or with three decimals if it is small and not whole.
pub fn shown(value: f64) -> String {
    if value.fract() != 0.0 && value < 100.0 {
        return format!("{value:.3}");
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |digits| ("-", digits));
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a bar as [`shown`], without trailing zeroes.
pub fn bar(value: f64) -> String {
    let text = shown(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// Rounds a number for the record: to a whole number from a hundred on, else to four decimals.
pub fn recorded(value: f64) -> f64 {
    match value.abs() >= 100.0 {
        true => value.round(),
        false => (value * 1e4).round() / 1e4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(shown(2_097_152.0), "2,097,152");
        assert_eq!(shown(999.0), "999");
        assert_eq!(shown(-1234.0), "-1,234");
        assert_eq!(shown(0.25), "0.250");
    }

    #[test]
    fn bars_have_no_trailing_zeroes() {
        assert_eq!(
            [0.12, 0.105, 1.0, 100.0, 2_130.0].map(bar),
            ["0.12", "0.105", "1", "100", "2,130"]
        );
    }

    #[test]
    fn recorded_numbers_are_rounded() {
        assert_eq!([0.123_456, 2.0, 1234.56].map(recorded), [0.1235, 2.0, 1235.0]);
    }
}
