//! The leak oracle: memory is filled with marks of its owner, and everything that the attacker receives is searched for
//! marks.
//!
//! Every byte of a mark has its highest bit set. The attacker sends bytes without that bit ([`plain`]), or data that
//! contains no part of a mark ([`in_part`]), so a mark that it receives is not its own. Eight successive bytes of a
//! mark count as a leak; random bytes match with a chance of 1 in 2^64. A fuzzer guided by comparisons learns the marks
//! from this file, and puts them wherever the input is copied.

use drivers::hal::Window;

/// Owner of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Owner {
    /// Former sessions, whose data is left in free memory.
    Past = 0x91,
    /// Another established session.
    Victim = 0xa3,
    /// A volume that is not exported to the attacker.
    Volume = 0xb5,
    /// The gateway's private memory.
    Gateway = 0xc7,
}

const OWNERS: [Owner; 4] = [Owner::Past, Owner::Victim, Owner::Volume, Owner::Gateway];
const LEN: usize = 16;
const RUN: usize = 8;
/// Successive bytes of a mark that an attacker must not send.
const PART: usize = 3;

/// The bytes of an owner's mark. Memory is filled with repetitions of it.
pub fn mark(owner: Owner) -> [u8; LEN] {
    core::array::from_fn(|n| (owner as u8).wrapping_add((n as u8).wrapping_mul(7)) | 0x80)
}

/// Fills memory with an owner's mark.
pub fn fill(memory: Window, owner: Owner) {
    let page = mark(owner).repeat(4096 / LEN);
    let mut at = 0;
    while at < memory.len() {
        let len = page.len().min(memory.len() - at);
        memory.write(at, &page[..len]).expect("inside");
        at += len;
    }
}

/// The owner and the offset of a mark in `bytes`.
pub fn find(bytes: &[u8]) -> Option<(Owner, usize)> {
    find_run::<RUN>(bytes)
}

/// Whether a sender of these bytes, or of parts of them, could receive its own mark.
pub fn in_part(bytes: &[u8]) -> bool {
    find_run::<PART>(bytes).is_some()
}

/// The bytes with their highest bit cleared, so that none is part of a mark.
pub fn plain(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte & 0x7f).collect()
}

fn find_run<const RUN: usize>(bytes: &[u8]) -> Option<(Owner, usize)> {
    let mut at = 0;
    while at + RUN <= bytes.len() {
        // A run ends here only if all its bytes have their highest bit set.
        match bytes[at..at + RUN].iter().rposition(|byte| byte & 0x80 == 0) {
            Some(plain) => at += plain + 1,
            None => {
                let run = &bytes[at..at + RUN];
                for owner in OWNERS {
                    let twice = mark(owner).repeat(2);
                    if twice.windows(RUN).any(|window| window == run) {
                        return Some((owner, at));
                    }
                }
                at += 1;
            }
        }
    }
    None
}

/// Panics if memory that `who` can see contains a mark.
pub fn check(memory: Window, who: &str) {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).expect("the lengths are equal");
    check_bytes(&bytes, who);
}

/// Panics if memory is not filled with the owner's mark any more.
pub fn untouched(memory: Window, owner: Owner, what: &str) {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).expect("the lengths are equal");
    let mark = mark(owner);
    assert!(bytes.chunks(LEN).all(|part| *part == mark[..part.len()]), "{what} was touched");
}

/// Panics if data for `who` contains a mark.
pub fn check_bytes(bytes: &[u8], who: &str) {
    if let Some((owner, at)) = find(bytes) {
        let end = bytes.len().min(at + 32);
        panic!("{who} has bytes of {owner:?} at {at}: {:02x?}", &bytes[at..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_found_at_any_offset() {
        for owner in OWNERS {
            for start in 0..LEN {
                let marked = &mark(owner).repeat(2)[start..start + RUN];
                let bytes = [&[0x11, 0xff, 0x22][..], marked, &[0x33]].concat();
                assert_eq!(find(&bytes), Some((owner, 3)), "from {start}");
            }
        }
        assert_eq!(find(&[0x7f; 100]), None);
        assert!(in_part(&[&[0x11][..], &mark(Owner::Past)[5..8]].concat()));
        assert!(!in_part(&mark(Owner::Past)[..2]) && !in_part(&plain(&mark(Owner::Past))));
        assert_eq!(find(&mark(Owner::Past)[..RUN - 1]), None);
        assert_eq!(find(&[0xff; 64]), None);
    }
}
