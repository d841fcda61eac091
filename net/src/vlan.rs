//! VLAN tags (IEEE 802.1Q): selects the frames of a port that belong to an interface.
//!
//! An interface without a VLAN accepts untagged frames and priority tags (VID 0). An interface with a VLAN accepts
//! frames with its tag only. Double-tagged frames are never accepted.

/// Bytes of a tag.
pub const TAG: usize = 4;
/// Offset of the tag: after the MAC addresses.
const AT: usize = 12;
const CUSTOMER: [u8; 2] = [0x81, 0x00];
const SERVICE: [u8; 2] = [0x88, 0xa8];
const OLD_SERVICE: [u8; 2] = [0x91, 0x00];

/// The VLAN of an interface; none for untagged frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan(Option<u16>);

impl Vlan {
    /// The VLAN with this VID, 1 to 4094.
    pub fn new(vid: Option<u16>) -> Self {
        Vlan(vid)
    }

    /// Checks whether a frame belongs to the interface. Returns whether it is tagged, or None if it does not belong.
    #[inline]
    pub fn admits(self, frame: &[u8]) -> Option<bool> {
        match (frame.get(AT..AT + 2) == Some(&CUSTOMER), self.0) {
            (false, None) => Some(false),
            (false, Some(_)) => None,
            (true, _) => self.admits_tagged(frame),
        }
    }

    #[cold]
    fn admits_tagged(self, frame: &[u8]) -> Option<bool> {
        let &[high, low, a, b] = frame.get(AT + 2..AT + 6)?.first_chunk()?;
        let vid = u16::from_be_bytes([high & 0x0f, low]);
        let taken =
            vid == self.0.unwrap_or(0) && ![CUSTOMER, SERVICE, OLD_SERVICE].contains(&[a, b]);
        taken.then_some(true)
    }
}

/// Copies the frame without its tag to `into`. None if it does not fit.
pub fn untag<'a>(frame: &[u8], into: &'a mut [u8]) -> Option<&'a [u8]> {
    let (addresses, rest) = (frame.get(..AT)?, frame.get(AT + TAG..)?);
    let into = into.get_mut(..AT + rest.len())?;
    into[..AT].copy_from_slice(addresses);
    into[AT..].copy_from_slice(rest);
    Some(into)
}

/// Appends the beginning of a frame to `into`, with the tag of a VLAN inserted.
pub fn tag(header: &[u8], vid: u16, into: &mut alloc::vec::Vec<u8>) {
    let (addresses, rest) = header.split_at(header.len().min(AT));
    into.extend_from_slice(addresses);
    into.extend_from_slice(&CUSTOMER);
    into.extend_from_slice(&vid.to_be_bytes());
    into.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn plain() -> Vec<u8> {
        (0..12).chain([8, 0, 0x45, 1, 2, 3]).collect()
    }

    fn tagged(vid: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        tag(&plain(), vid, &mut frame);
        frame
    }

    #[test]
    fn vid_0_counts_as_untagged() {
        let untagged = Vlan::default();
        assert_eq!(untagged.admits(&plain()), Some(false));
        for priority in 0..8 {
            assert_eq!(untagged.admits(&tagged(priority << 13)), Some(true));
            assert_eq!(untagged.admits(&tagged(priority << 13 | 1 << 12)), Some(true));
            for vid in [1, 5, 4094, 4095] {
                assert_eq!(untagged.admits(&tagged(priority << 13 | vid)), None);
            }
        }
    }

    #[test]
    fn interface_with_a_vlan_accepts_its_tag_only() {
        let vlan = Vlan::new(Some(5));
        assert_eq!(vlan.admits(&tagged(5)), Some(true));
        assert_eq!(vlan.admits(&tagged(0x6005)), Some(true));
        for other in [plain(), tagged(0), tagged(6), tagged(0x105)] {
            assert_eq!(vlan.admits(&other), None);
        }
    }

    #[test]
    fn double_tagged_frames_are_dropped() {
        for outer in [0, 5] {
            for inner in [CUSTOMER, SERVICE, OLD_SERVICE] {
                let mut frame = tagged(outer);
                frame[16..18].copy_from_slice(&inner);
                assert_eq!(Vlan::default().admits(&frame), None);
                assert_eq!(Vlan::new(Some(5)).admits(&frame), None);
            }
        }
    }

    #[test]
    fn truncated_frames_are_not_tagged() {
        for length in 0..18 {
            let frame = tagged(0);
            assert_ne!(Vlan::default().admits(&frame[..length]), Some(true), "{length}");
        }
    }

    #[test]
    fn untag_reverses_tag() {
        let mut into = [0; 100];
        assert_eq!(untag(&tagged(5), &mut into), Some(&plain()[..]));
        assert_eq!(untag(&tagged(5), &mut [0; 17]), None);
        assert_eq!(untag(&tagged(5)[..13], &mut into), None);
    }
}
