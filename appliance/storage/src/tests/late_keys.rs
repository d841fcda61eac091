//! The same over a provider that changes keys as hardware does: later, and told by a completion.

use crate::rnbd::server::Export;
use crate::rnbd::wire::{AccessMode, Close, Io, IoFlags, Operation};
use crate::testing::{Wire, World, context, user_io, with_late_keys};
use crate::volume::{Completion, RamVolume, Request, Submitted, Volume, VolumeError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Arena, Geometry};
use rtrs::client::{Outcome, Permit};
use rtrs::{Errno, Name};

/// Tests of other files once more (all but two that count what happens before a key has changed).
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
        a_path_that_fails_is_tried_again_after_a_pause_as_often_as_it_may_be
        requests_of_a_path_that_ends_go_on_over_another_and_nobody_notices
        a_silent_path_is_left_within_a_second_and_a_path_alone_is_kept
        every_policy_shares_the_work_in_its_way
        paths_are_added_and_removed
        a_server_that_was_started_anew_is_noticed_if_it_tells
        a_stock_server_that_was_cut_off_was_not_started_anew
        answers_of_linux_that_invalidate_are_taken_in_both_modes
        only_the_first_path_of_a_session_may_make_it
        timers_look_at_the_paths_that_are_due
    ;
    ends:
        a_silent_client_is_noticed_and_an_idle_one_stays
        a_client_that_comes_back_replaces_its_stale_path_at_once
        a_client_that_was_started_anew_replaces_all_paths_of_its_old_session
        a_session_name_belongs_to_one_host
        a_request_that_is_sent_again_on_another_path_waits_for_its_first_life
        a_session_that_ends_keeps_its_memory_until_the_volume_is_done_with_it
        a_busy_volume_slows_clients_down_and_errors_stay_with_their_request
        the_operator_disconnects_a_path
    ;
    bad:
        lies_about_lengths_get_einval_and_the_session_goes_on
        connection_requests_are_refused_with_the_errno_of_linux
        sessions_that_memory_does_not_suffice_for_are_refused
        a_key_dies_with_its_use_and_the_next_one_cannot_be_guessed
        an_offset_at_the_end_of_its_chunk_ends_the_path
    ;
    memory:
        what_is_half_open_has_no_memory_and_gives_way
        memory_is_zeroed_in_pieces_and_the_path_is_up_when_all_of_it_is
        every_session_gets_the_same_depth_or_waits_until_memory_is_free
        a_host_that_lost_its_power_gets_the_memory_of_the_session_that_it_had
        a_host_has_as_many_sessions_and_as_much_memory_as_it_may
        chunks_that_are_written_and_never_announced_are_taken_back_when_memory_is_short
    ;
    leaks:
        only_a_read_returns_data
        only_a_read_returns_data_on_demand
        a_volume_that_delivers_late_or_not_at_all_shows_nothing_else
        a_write_whose_data_was_never_sent_stores_nothing_of_others
        what_a_session_leaves_is_not_the_next_ones
    ;
    hosts:
        a_host_that_no_export_admits_is_refused_at_the_door
        every_path_and_every_open_is_looked_at
        a_name_is_its_hosts_until_its_paths_are_gone
        what_a_connection_is_refused_for_has_a_reason
        what_a_map_is_refused_for_has_a_reason
        the_log_names_who_ended_a_path
    ;
}

/// Memory that says nothing of it, as a disk: what is written there is not said to be copied at once.
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

/// Exports a disk beside the volume.
fn add_disk(world: &mut World) {
    let name = Name::new("disk0").unwrap();
    let volume = world.volumes.add(name, Box::new(Disk(memory()))).unwrap();
    let (read_only, allow, hosts) = (false, Vec::new(), Default::default());
    let export = Export { name, volume, read_only, allow, hosts };
    world.server.add_export(export, &world.volumes).unwrap();
}

/// A request waits for a key, and for nothing else.
fn ends_when_keys_change(world: &mut World, client: usize, permit: Permit) {
    assert_eq!(world.outcome(client, permit), None);
    world.wire.holds_changes = false;
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    world.clients[client].put_permit(permit);
}

/// Neither a read nor a write that is copied at once waits for the end of its key: the answer does.
#[test]
fn what_the_client_could_change_in_vain_is_not_waited_for() {
    for (volume, waits) in
        [(Box::new(memory()) as Box<dyn Volume>, false), (Box::new(Disk(memory())), true)]
    {
        let (mut world, client) = world_of(volume);
        world.wire.holds_changes = true;
        let permit = world.start_read(client, &user_io(Operation::Read, 0, 4096), 4096);
        world.run();
        // SESS_INFO, OPEN, and this, whose client waits for the end of a key of its own.
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

/// Once a session has a device whose data is not copied at once, all of its writes wait.
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

/// A write to a disk while the client could still change it, as it comes from one that names the disk before it was told
/// of it, is an error. Of a session that was never promised a key nobody asks.
#[test]
fn a_disk_takes_nothing_that_can_still_be_changed() {
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

/// Until its key is gone the client can still write into the chunk: nobody looks at the request before.
#[test]
fn a_request_is_not_looked_at_before_its_key_is_gone() {
    let (mut world, client) = world();
    world.wire.holds_changes = true;
    let permit = world.start_write(client, &user_io(Operation::Write, 8, 4096), &[0x11; 4096]);
    world.run();
    let path = world.server.transport().paths().next().unwrap();
    assert_eq!((path.in_flight, path.stats.writes), (0, 0));
    ends_when_keys_change(&mut world, client, permit);
}

/// The path ends while a key is being changed: nothing is left of the request.
#[test]
fn a_path_that_ends_meanwhile_takes_the_request_along() {
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

/// The provider has not let go of a session's regions when the session ends: its memory is nobody's until then.
#[test]
fn memory_is_not_used_again_before_the_provider_lets_go_of_it() {
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
    assert_eq!(world.server.transport().poll_timeout(), None, "nothing is looked at any more");
}

/// The server could still write where the data of a read lies: it is the user's when its key is gone.
#[test]
fn a_read_has_not_ended_before_its_key_is_gone() {
    let (mut world, client) = world();
    let permit = world.start_read(client, &user_io(Operation::Read, 0, 4096), 4096);
    // The request, and the server's key.
    while world.server.transport().paths().next().unwrap().stats.reads == 0 {
        assert!(world.turn());
    }
    world.wire.holds_changes = true;
    world.run();
    ends_when_keys_change(&mut world, client, permit);
}
