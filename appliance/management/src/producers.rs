//! Pages of `/api/v1` that take a while: `doctor`, whose probes of paths last a second or two, and the support bundle.

use crate::appliance::Appliance;
use crate::caller::Caller;
use crate::console::{Made, Support};
use crate::doctor;
use crate::system::Operator;

/// A page that is made while it is sent.
pub(crate) trait Producer {
    /// Appends the next bytes.
    fn piece(&mut self, appliance: &mut dyn Appliance, piece: &mut Vec<u8>) -> Made;
}

/// The result of `doctor`, when its probes have ended.
pub(crate) struct Doctor {
    /// As JSON, not as text.
    pub json: bool,
}

impl Doctor {
    /// Starts the probes of paths, if they are wanted.
    pub fn new(appliance: &mut dyn Appliance, json: bool, probes: bool) -> Doctor {
        if probes {
            doctor::start(appliance);
        }
        Doctor { json }
    }
}

impl Producer for Doctor {
    fn piece(&mut self, appliance: &mut dyn Appliance, piece: &mut Vec<u8>) -> Made {
        if !doctor::is_done(appliance) {
            return Made::Pending;
        }
        piece.extend_from_slice(doctor::result(appliance, self.json).as_bytes());
        Made::End
    }
}

/// The support bundle, with what its caller may read.
pub(crate) struct Bundle {
    support: Support,
    caller: Caller,
}

impl Bundle {
    /// Starts a bundle.
    pub fn new(appliance: &mut dyn Appliance, caller: &Caller) -> Bundle {
        let support = Support::new(&Operator::new(appliance, caller.clone()));
        Bundle { support, caller: caller.clone() }
    }
}

impl Producer for Bundle {
    fn piece(&mut self, appliance: &mut dyn Appliance, piece: &mut Vec<u8>) -> Made {
        self.support.poll(&mut Operator::new(appliance, self.caller.clone()), piece)
    }
}
