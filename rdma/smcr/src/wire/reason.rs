//! Diagnosis codes of CLC Decline, the reasons to fall back to TCP (Linux 6.12, net/smc/smc_clc.h).

use core::fmt;

/// A diagnosis code, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($code:literal $name:ident $text:literal)*) => {
        impl Reason {
            $(#[doc = $text] pub const $name: Reason = Reason($code);)*

            /// All known codes.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            /// Description of the code.
            pub const fn as_str(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "another reason",
                }
            }
        }
    };
}

reasons! {
    0x0101_0000 MEMORY "no memory"
    0x0201_0000 TIMEOUT_CONFIRM_LINK "no confirm link in time"
    0x0202_0000 TIMEOUT_ADD_LINK "no add link in time"
    0x0300_0000 CONFIGURATION "configuration"
    0x0301_0000 PEER_NO_SMC "the peer does not offer SMC"
    0x0302_0000 IPSEC "IPsec is used"
    0x0303_0000 NO_DEVICE "no common SMC device or EID"
    0x0303_0001 NO_SMCD_DEVICE "no SMC-D device"
    0x0303_0002 NO_SMCR_DEVICE "no SMC-R device or route"
    0x0303_0003 NO_ISM_V2 "no ISMv2 support"
    0x0303_0004 NO_V2_EXTENSION "no version 2 extension"
    0x0303_0005 NO_V2D_EXTENSION "no version 2 SMC-D extension"
    0x0303_0006 NO_SEID "no system EID"
    0x0303_0007 NO_SMCD_V2_DEVICE "no SMC-Dv2 device"
    0x0303_0008 NO_UEID "no user EID"
    0x0303_0009 RELEASE "release negotiation"
    0x0303_000a MAX_CONNECTIONS "connections negotiation"
    0x0303_000b MAX_LINKS "links negotiation"
    0x0304_0000 MODE "mode or version is not supported"
    0x0305_0000 RMBE_EYECATCHER "the peer's buffers have eyecatchers"
    0x0306_0000 OPTION "a socket option is not supported"
    0x0307_0000 PREFIX "IP prefixes differ"
    0x0308_0000 VLAN "getting the VLAN failed"
    0x0309_0000 ISM_VLAN "registering the VLAN failed"
    0x030a_0000 NO_ACTIVE_LINK "no active link"
    0x030b_0000 NO_SERVER_LINK "the server's link is unknown"
    0x030c_0000 VERSION "the version changed"
    0x030d_0000 MAX_DMB "too many buffers"
    0x030e_0000 NO_ROUTE "no route to the peer's RoCE address"
    0x030f_0000 INDIRECT "direct and routed do not match"
    0x0400_0000 SYNC "link groups do not match"
    0x0500_0000 PEER_DECLINED "the peer declined"
    0x0999_0000 INTERNAL "internal error"
    0x0999_0001 REMOTE_KEY "no room for the peer's key"
    0x0999_0002 READY_LINK "bringing the link up failed"
    0x0999_0003 REGISTER_BUFFER "announcing a buffer failed"
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} ({})", self.0, self.as_str())
    }
}
