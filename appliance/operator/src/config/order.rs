//! Short lists, put in order.

/// The items by their keys; those with the same keep their order. For what a document of 16 KiB can hold: the
/// sorts of the library take up to 10 KB of the image for each type.
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
