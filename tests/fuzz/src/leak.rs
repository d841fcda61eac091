//! The leak oracle: memory is filled with marks by owner, and whoever must not see it is searched for them.
//!
//! Every byte of a mark has its highest bit set; whoever attacks sends bytes without it ([`plain`]), or nothing in
//! which there is a part of a mark ([`in_part`]), so that a mark which comes to him was not his own. Eight bytes in
//! a row are taken for a leak: chance makes one of them in 2^64. A fuzzer that is guided by comparisons does not
//! leave it to chance: it learns the marks from this file, and puts them wherever the input is copied.

use drivers::hal::Window;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Owner {
    /// Sessions that are gone: what lies in memory that nobody has.
    Past = 0x91,
    /// Another session that stands.
    Victim = 0xa3,
    /// A volume that is not exported to the attacker.
    Volume = 0xb5,
    /// What the gateway keeps for itself.
    Gateway = 0xc7,
}

const OWNERS: [Owner; 4] = [Owner::Past, Owner::Victim, Owner::Volume, Owner::Gateway];
const LEN: usize = 16;
const RUN: usize = 8;
/// Bytes of a mark in a row that nobody sends who attacks.
const PART: usize = 3;

/// The bytes of an owner's mark, which repeats.
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

/// The owner of a mark that is in `bytes`, and where.
pub fn find(bytes: &[u8]) -> Option<(Owner, usize)> {
    find_run::<RUN>(bytes)
}

/// Whether somebody who sends these bytes, some of them at a time, could have a mark back.
pub fn in_part(bytes: &[u8]) -> bool {
    find_run::<PART>(bytes).is_some()
}

/// Bytes of which none is in a mark.
pub fn plain(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte & 0x7f).collect()
}

fn find_run<const RUN: usize>(bytes: &[u8]) -> Option<(Owner, usize)> {
    let mut at = 0;
    while at + RUN <= bytes.len() {
        // A run has its last byte here, and all of them have their highest bit set.
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

/// Panics if there is a mark in memory that `who` sees.
pub fn check(memory: Window, who: &str) {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).expect("its own length");
    check_bytes(&bytes, who);
}

/// Panics if memory is not all an owner's mark any more.
pub fn untouched(memory: Window, owner: Owner, what: &str) {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).expect("its own length");
    let mark = mark(owner);
    assert!(bytes.chunks(LEN).all(|part| *part == mark[..part.len()]), "{what} was touched");
}

/// Panics if there is a mark in what `who` is sent.
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
    fn a_mark_is_found_wherever_it_begins() {
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
