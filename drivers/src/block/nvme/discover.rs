//! Discovery of a controller's namespaces at bring-up: one admin command after the other, polled for completion.

use super::admin::Work;
use super::command::{self, Identify};
use super::controller::Controller;
use super::error::Error;
use super::identify::{self, Namespace};
use super::log_page::{self, SmartLog};
use super::queue::Command;
use crate::hal::Clock;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

/// Longest time for one command.
const TIMEOUT: Duration = super::life::ADMIN_TIMEOUT;
/// Most namespaces that are used: slots for requests, and names, are limited.
const MOST_NAMESPACES: usize = 64;
/// First version with namespace identification descriptors: 1.3.
const DESCRIPTORS: u32 = 0x0001_0300;
/// NSIDs in a list (5.15.2.3).
const LISTED: usize = 1024;

/// A namespace: its NSID, and its Identify data or why it cannot be used.
pub type Found = (u32, Result<Namespace, String>);

/// Brings the controller up, and waits until it takes requests.
pub fn bring_up(controller: &mut Controller, clock: &dyn Clock) -> Result<(), Error> {
    loop {
        controller.advance();
        controller.check_time(clock.now());
        if controller.life.is_live() {
            return Ok(());
        }
        if let Some(error) = controller.life.error() {
            return Err(error);
        }
        crate::hal::relax();
    }
}

/// Executes a command whose data goes to the admin queue's page. Returns its status field if it fails.
fn execute(
    controller: &mut Controller,
    name: &'static str,
    command: Command,
    clock: &dyn Clock,
) -> Result<Result<(), u16>, Error> {
    controller.admin.page().fill(0);
    controller.admin.start(Work::Query(name), command, &controller.pair.registers);
    let deadline = clock.now() + TIMEOUT;
    loop {
        match controller.admin.take(&controller.pair.registers)? {
            Some((_, status)) if status & 0x7ff == 0 => return Ok(Ok(())),
            Some((_, status)) => return Ok(Err(status)),
            None if clock.now() < deadline => crate::hal::relax(),
            None => return Err(Error::Silent(name)),
        }
    }
}

/// The namespaces of a controller, in the order of their NSIDs.
pub fn namespaces(controller: &mut Controller, clock: &dyn Clock) -> Result<Vec<Found>, Error> {
    let nsids = active(controller, clock)?;
    let page = controller.admin.page();
    let mut found = Vec::new();
    for (n, nsid) in nsids.into_iter().enumerate() {
        if n >= MOST_NAMESPACES {
            let why = "the controller has more than 64 namespaces: this one is not used";
            found.push((nsid, Err(why.to_string())));
            continue;
        }
        let identify = command::identify(Identify::Namespace(nsid), page.bus_address());
        let namespace = match execute(controller, "Identify (namespace)", identify, clock)? {
            Err(status) => {
                Err(Error::Refused { command: "Identify (namespace)", status }.to_string())
            }
            Ok(()) => {
                let Some(identity) = &controller.identity else {
                    return Err(Error::InvalidCompletion);
                };
                Namespace::read(&page, identity).map_err(|why| why.to_string())
            }
        };
        let namespace = match namespace {
            Ok(namespace) => command_set(controller, nsid, clock)?.map(|()| namespace),
            unusable => unusable,
        };
        found.push((nsid, namespace));
    }
    Ok(found)
}

/// Checks that a namespace is of the NVM command set. Controllers before 1.3 without CAP.CSS bit 6 are not asked, and
/// a controller that refuses the command has no other command set.
fn command_set(
    controller: &mut Controller,
    nsid: u32,
    clock: &dyn Clock,
) -> Result<Result<(), String>, Error> {
    let registers = &controller.pair.registers;
    if registers.version() < DESCRIPTORS && !registers.capabilities().has_command_sets {
        return Ok(Ok(()));
    }
    let page = controller.admin.page();
    let identify = command::identify(Identify::Descriptors(nsid), page.bus_address());
    match execute(controller, "Identify (namespace descriptors)", identify, clock)? {
        Err(_) => Ok(Ok(())),
        Ok(()) => Ok(identify::command_set(&page).map_err(|why| why.to_string())),
    }
}

/// NSIDs of the active namespaces. For a controller that does not list them (before 1.1): all valid NSIDs.
fn active(controller: &mut Controller, clock: &dyn Clock) -> Result<Vec<u32>, Error> {
    let page = controller.admin.page();
    let list = command::identify(Identify::Namespaces(0), page.bus_address());
    let most = controller.identity.as_ref().map_or(0, |identity| identity.namespaces);
    if execute(controller, "Identify (namespaces)", list, clock)?.is_err() {
        return Ok((1..=most.min(MOST_NAMESPACES as u32)).collect());
    }
    let listed = (0..LISTED).map(|n| page.load32(4 * n)).take_while(|&nsid| nsid != 0);
    let mut nsids: Vec<u32> = listed.filter(|&nsid| nsid <= most).collect();
    nsids.sort_unstable();
    nsids.dedup();
    Ok(nsids)
}

/// Reads the health log page. A drive that refuses it is not asked again.
pub fn health(controller: &mut Controller, clock: &dyn Clock) -> Result<(), Error> {
    let page = controller.admin.page();
    let command = command::health(page.bus_address(), log_page::LEN);
    if execute(controller, "Get Log Page (SMART / Health Information)", command, clock)?.is_ok() {
        controller.smart = Some(SmartLog::read(&page));
    }
    Ok(())
}
