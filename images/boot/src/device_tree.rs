//! Parser for the command line in a hypervisor's device tree (Devicetree specification 0.4, chapter 5). The tree is
//! not trusted.

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const NOP: u32 = 4;

/// Size of the tree with this header, in bytes.
pub fn total_size(header: &[u8]) -> Option<u32> {
    (word(header, 0)? == MAGIC).then(|| word(header, 4)).flatten()
}

/// The command line: `bootargs` of the node `/chosen`.
pub fn boot_arguments(tree: &[u8]) -> Option<&[u8]> {
    total_size(tree)?;
    let strings = tree.get(word(tree, 12)? as usize..)?;
    let mut at = word(tree, 8)? as usize;
    let (mut depth, mut is_chosen) = (0u32, false);
    loop {
        let token = word(tree, at)?;
        at = at.checked_add(4)?;
        match token {
            BEGIN_NODE => {
                let name = string(tree.get(at..)?)?;
                at = at.checked_add(name.len() + 1)?.checked_next_multiple_of(4)?;
                depth = depth.checked_add(1)?;
                is_chosen = depth == 2 && name == b"chosen";
            }
            END_NODE => {
                depth = depth.checked_sub(1)?;
                is_chosen = false;
            }
            PROP => {
                let (len, name) = (word(tree, at)? as usize, word(tree, at.checked_add(4)?)?);
                at = at.checked_add(8)?;
                let value = tree.get(at..at.checked_add(len)?)?;
                at = at.checked_add(len)?.checked_next_multiple_of(4)?;
                if is_chosen && string(strings.get(name as usize..)?)? == b"bootargs" {
                    return string(value);
                }
            }
            NOP => {}
            _ => return None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|&word| u32::from_be_bytes(word))
}

/// The bytes before the first zero.
fn string(bytes: &[u8]) -> Option<&[u8]> {
    bytes.iter().position(|&byte| byte == 0).map(|end| &bytes[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A tree in the order of uhyve: `memory`, `cpus`, then `chosen`.
    fn tree(arguments: &str) -> Vec<u8> {
        let mut structure = Vec::new();
        let mut words = |words: &[u32]| {
            structure.extend(words.iter().flat_map(|word| word.to_be_bytes()));
            structure.len()
        };
        words(&[BEGIN_NODE, 0]);
        words(&[PROP, 4, 9, 2, BEGIN_NODE, u32::from_be_bytes(*b"cpus"), 0, END_NODE]);
        words(&[BEGIN_NODE]);
        structure.extend(b"chosen\0\0");
        structure
            .extend([PROP, arguments.len() as u32 + 1, 0].iter().flat_map(|w| w.to_be_bytes()));
        structure.extend(arguments.as_bytes());
        structure.extend([0; 4]);
        structure.truncate(structure.len() / 4 * 4);
        structure.extend([END_NODE, END_NODE, 9].iter().flat_map(|w| w.to_be_bytes()));
        let strings = b"bootargs\0#cells\0";
        let total = 56 + structure.len() + strings.len();
        let (sizes, at) =
            ([strings.len() as u32, structure.len() as u32], 56 + structure.len() as u32);
        let header = [&[MAGIC, total as u32, 56, at, 40, 17, 16, 0], &sizes[..]].concat();
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.resize(56, 0);
        bytes.extend(structure);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn boot_arguments_are_found() {
        for arguments in ["", "a", "-- isthmus.http.port=80", "env=A=b isthmus.x=1 -- rest"] {
            let tree = tree(arguments);
            assert_eq!(total_size(&tree), Some(tree.len() as u32));
            let other = ::fdt::Fdt::new(&tree).unwrap();
            assert_eq!(other.chosen().bootargs().unwrap_or_default(), arguments);
            assert_eq!(boot_arguments(&tree), Some(arguments.as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn parser_survives_changed_bytes(at in prop::collection::vec((0usize..200, any::<u8>()), 1..8), cut in 0usize..200) {
            let mut tree = tree("isthmus.http.port=80");
            for (at, byte) in at {
                if let Some(place) = tree.get_mut(at) {
                    *place = byte;
                }
            }
            tree.truncate(cut);
            let _ = boot_arguments(&tree);
        }
    }
}
