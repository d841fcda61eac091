//! Register differences between generations of Intel's bridge.

/// A generation of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The third generation: Skylake.
    Third,
    /// The fourth generation, in Ice Lake: translations are aligned to the BAR's size.
    IceLake,
    /// The fourth generation, in Sapphire Rapids and Granite Rapids.
    SapphireRapids,
    /// The fourth generation, in Diamond Rapids: PPD0 is elsewhere.
    DiamondRapids,
}

impl Generation {
    /// The generation of a device. Unknown devices count as third generation, so that tests can present them to
    /// drivers.
    pub fn of(device: u16, revision: u8) -> Self {
        match (device, revision) {
            (0x347e, 0..0x10) => Generation::IceLake,
            (0x347e | 0x0db4, _) => Generation::SapphireRapids,
            (0x7868, _) => Generation::DiamondRapids,
            _ => Generation::Third,
        }
    }

    /// Whether this is the third generation.
    pub fn is_third(self) -> bool {
        self == Generation::Third
    }

    /// Whether a translation's bits below the BAR's size are ignored.
    pub fn aligns_to_bar(self) -> bool {
        !matches!(self, Generation::SapphireRapids | Generation::DiamondRapids)
    }

    /// Offset of the port's control (PPD0) in the fourth generation.
    pub fn port_control(self) -> u64 {
        if self == Generation::DiamondRapids { 0xf0d4 } else { 0xb0d4 }
    }

    /// Offset of the doorbell vectors.
    pub fn vectors(self) -> u64 {
        if self.is_third() { 0xd0 } else { 0x50 }
    }

    /// Offset of the other machine's scratchpads.
    pub fn peer_scratchpads(self) -> u64 {
        if self.is_third() { 0x180 } else { 0x8080 }
    }

    /// Offsets of the MSI-X table and of its pending bits.
    pub fn msix(self) -> (u32, u32) {
        if self.is_third() { (0x8000, 0x9000) } else { (0xe000, 0xe800) }
    }

    /// Link status of an active link: 16 lanes, PCI Express 3.0 or 4.0.
    pub fn link_up(self) -> u16 {
        0x2000 | 16 << 4 | if self.is_third() { 3 } else { 4 }
    }

    /// The port definition, by connection (1 is back to back) and side. The third generation has it in configuration
    /// space, the fourth in a register (PPD1).
    pub fn port_definition(self, connection: u32, downstream: bool) -> u32 {
        let side = if downstream { 1 } else { 0 };
        match self {
            Generation::Third => connection | side << 4,
            Generation::IceLake => connection << 9 | side << 12,
            Generation::SapphireRapids | Generation::DiamondRapids => connection << 9 | side << 14,
        }
    }
}
