//! Which device a verb is for, by the name of the object that it is about.

/// Calls the device that has an object: `name` is the object's name there, `device` the device, and `none` what there is
/// without it.
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
                    let ($device, $own) = (&mut card.beside.device, $kind(own));
                    $call
                }
                None => $none,
            },
        }
    };
}

/// The same to look at.
macro_rules! seen_by_name {
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
                    let ($device, $own) = (&card.beside.device, $kind(own));
                    $call
                }
                None => $none,
            },
        }
    };
}

/// Calls what stands beside the ports' device: `beside` is that of whose domain `pd` names, `pd` the domain of the ports'
/// device that it stands beside.
macro_rules! in_domain {
    ($self:ident, $pd:expr, |$beside:ident, $of:ident| $call:expr, $ports:expr) => {
        match names::owner($pd.0) {
            Owner::Ports => $ports,
            Owner::Bridge(number, of) => match $self.bridged.get_mut(number) {
                Some(bridged) => {
                    let ($beside, $of) = (bridged, PdId(of));
                    $call
                }
                None => Err(NO_OBJECT),
            },
            #[cfg(feature = "connectx")]
            Owner::Card(number, of) => match $self.cards.get_mut(number) {
                Some(card) => {
                    let ($beside, $of) = (&mut card.beside, PdId(of));
                    $call
                }
                None => Err(NO_OBJECT),
            },
        }
    };
}

pub(crate) use {by_name, in_domain, seen_by_name};
