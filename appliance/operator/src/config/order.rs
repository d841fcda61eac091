//! Insertion sort for short lists, smaller in the image than the library's sorts.

/// Sorts items by key, stably. Only for lists that fit in a document of 16 KiB: each instance of the library's sort
/// takes up to 10 KB of the image.
pub(super) fn by_key<T, K: Ord>(
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let mut sorted = Vec::new();
    for item in items {
        let at = sorted.partition_point(|other| key(other) <= key(&item));
        sorted.insert(at, item);
    }
    sorted
}
