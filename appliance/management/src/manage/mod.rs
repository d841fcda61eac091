//! Console commands for volumes, exports, sessions, devices, paths, remotes, mirrors and bridges, in the grammar of the
//! `rnbd` tool of Linux hosts: object, command, name, options.

mod bridges;
pub(crate) mod exports;
mod limits;
mod listing;
mod nvme;
pub(crate) mod openness;
mod options;
mod remote;
pub(crate) mod sessions;
pub(crate) mod volumes;
mod wipe;

use crate::appliance::{Appliance, Told};
use crate::console::{
    DeviceVerb, ExportVerb, MirrorVerb, NameVerb, NtbVerb, ObjectVerb, PathVerb, RemoteVerb,
    SessionVerb, UpgradeVerb, VolumeVerb,
};
use crate::orders::{MirrorOrder, Order, PathOrder};
use crate::words::one_name;
use listing::{Objects, list, show};
use net::dns::Host;

/// Executes or starts a command.
pub(crate) fn act(appliance: &mut dyn Appliance, verb: ObjectVerb, rest: &str) -> Told {
    let words: Vec<&str> = rest.split_whitespace().collect();
    let name = || one_name(&words);
    match verb {
        ObjectVerb::Volume(verb) => match verb {
            VolumeVerb::List => list(appliance, Objects::Volumes, &words),
            VolumeVerb::Show => show(appliance, Objects::Volumes, &words),
            VolumeVerb::Create => volumes::create(appliance, &words),
            VolumeVerb::Grow => volumes::grow(appliance, &words),
            VolumeVerb::Delete => volumes::delete(appliance, &words),
        },
        ObjectVerb::Export(verb) => match verb {
            ExportVerb::List => list(appliance, Objects::Exports, &words),
            ExportVerb::Add => exports::change(appliance, &words, true),
            ExportVerb::Set => exports::change(appliance, &words, false),
            ExportVerb::Remove => exports::remove(appliance, name()?),
        },
        ObjectVerb::Remote(verb) => match verb {
            RemoteVerb::List => list(appliance, Objects::Remotes, &words),
            RemoteVerb::Add => remote::add(appliance, &words),
            RemoteVerb::Remap => appliance.carry_out(Order::Remap(name()?)),
            RemoteVerb::Read => remote::read(appliance, &words),
            RemoteVerb::Remove => remote::remove(appliance, name()?),
        },
        ObjectVerb::Mirror(verb) => match verb {
            MirrorVerb::List => list(appliance, Objects::Mirrors, &words),
            MirrorVerb::Create => remote::create(appliance, &words),
            MirrorVerb::Force => appliance.carry_out(Order::Mirror(name()?, MirrorOrder::Force)),
            MirrorVerb::Grow => remote::grow_mirror(appliance, name()?),
            MirrorVerb::Detach => remote::detach(appliance, &words),
            MirrorVerb::Attach => remote::attach(appliance, &words),
            MirrorVerb::Remove => remote::remove_mirror(appliance, &words),
        },
        ObjectVerb::Session(verb) => match verb {
            SessionVerb::List => list(appliance, Objects::Sessions, &words),
            SessionVerb::Show => show(appliance, Objects::Sessions, &words),
            SessionVerb::Disconnect => sessions::disconnect(appliance, name()?),
        },
        ObjectVerb::Device(verb) => match verb {
            DeviceVerb::List => list(appliance, Objects::Devices, &words),
            DeviceVerb::Show => show(appliance, Objects::Devices, &words),
            DeviceVerb::Close => sessions::close_device(appliance, &words),
        },
        ObjectVerb::Path(verb) => match verb {
            PathVerb::List => list(appliance, Objects::Paths, &words),
            PathVerb::Show => show(appliance, Objects::Paths, &words),
            PathVerb::Disconnect => sessions::path_order(appliance, name()?, PathOrder::Disconnect),
            PathVerb::Reset => sessions::path_order(appliance, name()?, PathOrder::Reset),
        },
        ObjectVerb::Ntb(NtbVerb::Measure) => bridges::measure(appliance, &words),
        ObjectVerb::Ntb(NtbVerb::Reset) => bridges::reset(appliance, &words),
        ObjectVerb::Nvme(verb) => nvme::act(appliance, verb, &words),
        ObjectVerb::Usnic(verb) => appliance.carry_out(Order::Usnic(verb, &words)),
        ObjectVerb::Name(NameVerb::Resolve) => resolve(appliance, name()?),
        ObjectVerb::Upgrade(UpgradeVerb::Confirm) => appliance.carry_out(Order::ConfirmUpgrade),
        ObjectVerb::Upgrade(UpgradeVerb::Write) => appliance.carry_out(Order::Upgrade(&words)),
        ObjectVerb::Wipe => wipe::wipe(appliance, &words),
        // `Operator` executes it, because it needs the caller.
        ObjectVerb::Configure(_) => Err("no caller".into()),
    }
}

/// Starts to resolve a name.
fn resolve(appliance: &mut dyn Appliance, name: &str) -> Told {
    match name.parse().map_err(|why| format!("{name:?}: {why}"))? {
        Host::Address(address) => Err(format!("{address} is an address")),
        Host::Name(name) => appliance.carry_out(Order::Resolve(&name)),
    }
}
