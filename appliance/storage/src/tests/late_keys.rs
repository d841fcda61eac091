//! Tests over a provider that changes keys as hardware does: by a work request with a completion.

use crate::rnbd::server::Export;
use crate::rnbd::wire::{AccessMode, Close, Io, IoFlags, Operation};
use crate::testing::{Wire, World, context, user_io, with_late_keys};
use crate::volume::{Completion, RamVolume, Request, Submitted, Volume, VolumeError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Arena, Geometry};
use rtrs::client::{Outcome, Permit};
use rtrs::{Errno, Name};

/// Repeats tests of other files, except two that count events before a key has changed.
macro_rules! late {
    ($($file:ident: $($test:ident)*;)*) => {
        $(mod $file {
            $(#[test]
            fn $test() {
                super::with_late_keys(crate::tests::$file::$test);
            })*
        })*
    };
}

late! {
    basic:
        map_write_read_unmap_in_both_modes
        reads_take_the_fewest_messages_that_the_mode_allows
        many_requests_at_once_on_every_chunk
        access_modes_follow_the_rules_of_the_kernel
        force_close_ends_io_until_the_device_is_opened_again
    ;
    paths:
        failed_path_reconnects_after_a_delay_up_to_the_limit
        requests_of_an_ended_path_fail_over_transparently
        silent_path_fails_over_within_a_second_and_the_last_path_is_kept
        each_policy_balances_requests_as_defined
        paths_are_added_and_removed
        restarted_server_is_noticed_by_its_incarnation
        stock_server_that_was_cut_off_does_not_count_as_restarted
        invalidating_responses_of_linux_are_accepted_in_both_modes
        only_the_first_path_of_a_session_may_make_it
        timers_visit_only_paths_that_are_due
    ;
    ends:
        a_silent_client_is_noticed_and_an_idle_one_stays
        a_client_that_comes_back_replaces_its_stale_path_at_once
        restarted_client_replaces_all_paths_of_its_old_session
        a_session_name_belongs_to_one_host
        request_resent_on_another_path_waits_for_the_first_one
        ended_session_keeps_its_memory_until_the_volume_completes
        a_busy_volume_slows_clients_down_and_errors_stay_with_their_request
        the_operator_disconnects_a_path
    ;
    bad:
        wrong_lengths_get_einval_and_the_session_stays_up
        connection_requests_are_refused_with_the_errno_of_linux
        session_without_memory_is_refused
        key_is_invalid_after_use_and_the_next_is_unpredictable
        an_offset_at_the_end_of_its_chunk_ends_the_path
    ;
    memory:
        half_open_session_has_no_memory_and_is_evicted
        memory_is_zeroed_in_pieces_and_the_path_is_up_when_all_of_it_is
        every_session_gets_the_same_depth_or_waits_until_memory_is_free
        host_after_a_power_loss_gets_the_memory_of_its_old_session
        host_has_at_most_its_limit_of_sessions_and_memory
        session_that_hoards_chunks_is_evicted_when_memory_is_short
    ;
    leaks:
        only_a_read_returns_data
        only_a_read_returns_data_on_demand
        volume_that_fills_data_late_or_never_leaks_nothing
        a_write_whose_data_was_never_sent_stores_nothing_of_others
        data_of_an_ended_session_is_hidden_from_the_next
    ;
    hosts:
        connection_of_a_host_that_no_export_admits_is_refused
        hosts_are_checked_at_every_connect_and_open
        session_name_belongs_to_its_host_until_its_paths_end
        refused_connection_has_a_reason
        refused_map_has_a_reason
        log_names_the_cause_of_a_path_end
    ;
}

/// Memory that does not report itself as such: like a disk, it does not promise to copy written data at once.
struct Disk(RamVolume);

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        self.0.submit(request)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
    fn is_idle(&self) -> bool {
        true
    }
}

fn memory() -> RamVolume {
    RamVolume::new(Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap(), false)
}

/// A world with late keys, and a client with the volume open, which is a disk.
fn world() -> (World, usize) {
    world_of(Box::new(Disk(memory())))
}

fn world_of(volume: Box<dyn Volume>) -> (World, usize) {
    let mut world = World::with_volume(World::small(true), 1 << 20, volume);
    world.wire.late_keys = true;
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    (world, client)
}

/// Exports a disk in addition to the volume.
fn add_disk(world: &mut World) {
    let name = Name::new("disk0").unwrap();
    let volume = world.volumes.add(name, Box::new(Disk(memory()))).unwrap();
    let (read_only, allow, hosts) = (false, Vec::new(), Default::default());
    let limiter = Default::default();
    let export = Export { name, volume, read_only, allow, hosts, limiter };
    world.server.add_export(export, &world.volumes).unwrap();
}

/// Checks that a request waits only for a change of a key.
fn ends_when_keys_change(world: &mut World, client: usize, permit: Permit) {
    assert_eq!(world.outcome(client, permit), None);
    world.wire.holds_changes = false;
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    world.clients[client].put_permit(permit);
}

/// A read, and a write that is copied at once, are executed before the change of their key. Other writes wait for it.
#[test]
fn read_and_copied_write_do_not_wait_for_the_key_change() {
    for (volume, waits) in
        [(Box::new(memory()) as Box<dyn Volume>, false), (Box::new(Disk(memory())), true)]
    {
        let (mut world, client) = world_of(volume);
        world.wire.holds_changes = true;
        let permit = world.start_read(client, &user_io(Operation::Read, 0, 4096), 4096);
        world.run();
        // SESS_INFO, OPEN, and this read, which the client completes only after it has revoked its own key.
        assert_eq!(world.server.transport().paths().next().unwrap().stats.reads, 3);
        let written = world.start_write(client, &user_io(Operation::Write, 8, 512), &[0x11; 512]);
        world.run();
        let ended = world.outcome(client, written);
        assert_eq!(ended, (!waits).then_some(Outcome::Answered(Ok(()))));
        world.wire.holds_changes = false;
        world.run();
        for (permit, ended) in [(permit, None), (written, ended)] {
            let ended = ended.or_else(|| world.outcome(client, permit));
            assert_eq!(ended, Some(Outcome::Answered(Ok(()))));
            world.clients[client].put_permit(permit);
        }
    }
}

/// Once a session has a device that does not copy written data at once, all of its writes wait.
#[test]
fn a_device_that_does_not_copy_makes_all_writes_wait() {
    let (mut world, client) = world_of(Box::new(memory()));
    add_disk(&mut world);
    let first = world.open(client, "ram0", AccessMode::ReadWrite).unwrap().device;
    let second = world.open(client, "disk0", AccessMode::ReadWrite).unwrap().device;
    assert_ne!(first, second);
    world.wire.holds_changes = true;
    let permit = world.start_write(client, &user_io(Operation::Write, 8, 512), &[0x11; 512]);
    world.run();
    ends_when_keys_change(&mut world, client, permit);
    world.write(client, &Close { device: second }.emit(), &[]).unwrap();
    world.wire.holds_changes = true;
    let permit = world.start_write(client, &user_io(Operation::Write, 8, 512), &[0x11; 512]);
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    world.clients[client].put_permit(permit);
}

/// A write to a disk fails while the client could still change its data. A client provokes that by using a device id
/// before the OPEN response. Sessions without promised keys are not checked.
#[test]
fn disk_rejects_a_write_that_the_client_can_still_change() {
    for (promised, end) in [(false, Ok(())), (true, Err(Errno::EIO))] {
        let volume: Box<dyn Volume> =
            if promised { Box::new(memory()) } else { Box::new(Disk(memory())) };
        let (mut world, client) = world_of(volume);
        world.write(client, &user_io(Operation::Write, 8, 512), &[0x11; 512]).unwrap();
        add_disk(&mut world);
        let device = world.open(client, "disk0", AccessMode::ReadWrite).unwrap().device;
        let (sector, size, flags, priority) = (8, 512, IoFlags::SYNC, 0);
        let sector = |operation| Io { device, sector, operation, flags, size, priority }.emit();
        world.wire.hides_keys = true;
        assert_eq!(world.write(client, &sector(Operation::Write), &[0x22; 512]), end);
        world.wire.hides_keys = false;
        let expected = if promised { 0 } else { 0x22 };
        assert_eq!(world.read(client, &sector(Operation::Read), 512), Ok([expected; 512].to_vec()));
    }
}

/// The client can write into the chunk until its key is revoked, so the request is not parsed before.
#[test]
fn request_is_not_parsed_before_its_key_is_revoked() {
    let (mut world, client) = world();
    world.wire.holds_changes = true;
    let permit = world.start_write(client, &user_io(Operation::Write, 8, 4096), &[0x11; 4096]);
    world.run();
    let path = world.server.transport().paths().next().unwrap();
    assert_eq!((path.in_flight, path.stats.writes), (0, 0));
    ends_when_keys_change(&mut world, client, permit);
}

/// The path ends while a key is being changed: the request is dropped.
#[test]
fn path_that_ends_during_a_key_change_drops_the_request() {
    let (mut world, client) = world();
    let memory = world.arena.available();
    world.wire.holds_changes = true;
    let permit = world.start_write(client, &user_io(Operation::Write, 8, 4096), &[0x11; 4096]);
    world.run();
    let path = world.server.transport().paths().next().unwrap().id;
    world.server.transport_mut().disconnect(path, context!(world, gateway));
    world.wire.holds_changes = false;
    world.run();
    assert_eq!(world.server.transport().sessions().count(), 0);
    assert!(world.arena.available() > memory, "the chunks are free");
    assert_ne!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
}

/// A session's memory is not reused before the provider has released the session's regions.
#[test]
fn memory_is_not_reused_before_the_provider_releases_it() {
    let (mut world, _) = world();
    let memory = world.arena.available();
    world.wire.lingers = true;
    let path = world.server.transport().paths().next().unwrap().id;
    world.server.transport_mut().disconnect(path, context!(world, gateway));
    world.pass(2);
    assert_eq!(world.server.transport().sessions().count(), 0);
    assert_eq!(world.arena.available(), memory);
    world.wire.lingers = false;
    world.pass(1);
    assert!(world.arena.available() > memory);
    assert_eq!(world.server.transport().poll_timeout(), None, "no timer is left");
}

/// The server can write to the memory of a read until the client's key is revoked, so the read ends only then.
#[test]
fn read_does_not_end_before_its_key_is_revoked() {
    let (mut world, client) = world();
    let permit = world.start_read(client, &user_io(Operation::Read, 0, 4096), 4096);
    // The request arrives, and the server's key changes.
    while world.server.transport().paths().next().unwrap().stats.reads == 0 {
        assert!(world.turn());
    }
    world.wire.holds_changes = true;
    world.run();
    ends_when_keys_change(&mut world, client, permit);
}
