//! Dispatch of a verb to the device of its object, by the object's handle.

/// Calls the device of an object: `$device` is the device, `$own` its handle of the object. Evaluates to `$none`
/// without that device.
macro_rules! by_name {
    ($self:ident, $name:expr, $kind:ident, |$device:ident, $own:ident| $call:expr, $none:expr) => {
        match names::owner($name.0) {
            Owner::Ports => {
                let ($device, $own) = (&mut $self.roce, $name);
                $call
            }
            Owner::Bridge(number, own) => match $self.bridged.get_mut(number) {
                Some(bridged) => {
                    let ($device, $own) = (&mut bridged.device, $kind(own));
                    $call
                }
                None => $none,
            },
            #[cfg(feature = "connectx")]
            Owner::Card(number, own) => match $self.cards.get_mut(number) {
                Some(card) => {
                    let ($device, $own) = (&mut card.secondary.device, $kind(own));
                    $call
                }
                None => $none,
            },
        }
    };
}

/// As `by_name`, for calls that change nothing.
macro_rules! by_name_ref {
    ($self:ident, $name:expr, $kind:ident, |$device:ident, $own:ident| $call:expr, $none:expr) => {
        match names::owner($name.0) {
            Owner::Ports => {
                let ($device, $own) = (&$self.roce, $name);
                $call
            }
            Owner::Bridge(number, own) => match $self.bridged.get(number) {
                Some(bridged) => {
                    let ($device, $own) = (&bridged.device, $kind(own));
                    $call
                }
                None => $none,
            },
            #[cfg(feature = "connectx")]
            Owner::Card(number, own) => match $self.cards.get(number) {
                Some(card) => {
                    let ($device, $own) = (&card.secondary.device, $kind(own));
                    $call
                }
                None => $none,
            },
        }
    };
}

/// As `by_name`, for memory on demand, which cards do not have.
macro_rules! by_name_on_demand {
    ($self:ident, $region:expr, |$device:ident, $own:ident| $call:expr, $none:expr) => {
        match names::owner($region.0) {
            Owner::Ports => {
                let ($device, $own) = (&mut $self.roce, $region);
                $call
            }
            Owner::Bridge(number, own) => match $self.bridged.get_mut(number) {
                Some(bridged) => {
                    let ($device, $own) = (&mut bridged.device, MrId(own));
                    $call
                }
                None => $none,
            },
            #[cfg(feature = "connectx")]
            Owner::Card(..) => $none,
        }
    };
}

/// Calls the secondary device of the domain `pd`: `$secondary` is that device, `$of` the domain of the ports' device
/// that corresponds to `pd`. Evaluates to `$ports` for a domain of the ports' device itself.
macro_rules! in_domain {
    ($self:ident, $pd:expr, |$secondary:ident, $of:ident| $call:expr, $ports:expr) => {
        match names::owner($pd.0) {
            Owner::Ports => $ports,
            Owner::Bridge(number, of) => match $self.bridged.get_mut(number) {
                Some(bridged) => {
                    let ($secondary, $of) = (bridged, PdId(of));
                    $call
                }
                None => Err(NO_OBJECT),
            },
            #[cfg(feature = "connectx")]
            Owner::Card(number, of) => match $self.cards.get_mut(number) {
                Some(card) => {
                    let ($secondary, $of) = (&mut card.secondary, PdId(of));
                    $call
                }
                None => Err(NO_OBJECT),
            },
        }
    };
}

pub(crate) use {by_name, by_name_on_demand, by_name_ref, in_domain};
