//! Suggestions for misspelled words.

/// The known word closest to `word`, if one is close enough.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.chars().take(64).collect();
    known
        .map(|k| (strsim::osa_distance(&word, k), k))
        .filter(|&(distance, k)| distance <= 1 + k.len() / 4)
        .min()
        .map(|(_, k)| k)
}

/// ` (did you mean "…"?)` if a known word is close to `word`, else an empty text.
pub fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(word, known).map(|k| format!(" (did you mean {k:?}?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn only_close_words_are_suggested() {
        let known = || ["mtu", "address", "gateway"].into_iter();
        assert_eq!(did_you_mean("mtux", known()), " (did you mean \"mtu\"?)");
        assert_eq!(did_you_mean("adress", known()), " (did you mean \"address\"?)");
        assert_eq!(did_you_mean("hostname", known()), "");
        assert_eq!(did_you_mean(&"x".repeat(1 << 20), known()), "");
    }
}
