//! The cases, by what they are about.

mod connections;
mod data;
mod errors;
mod keys;
mod objects;
mod queues;
mod states;

use crate::fixture::Fixture;

/// A case: panics if the devices do not do what they have to. Each makes a world of its own.
pub type Case = fn(Box<dyn Fixture>);

/// Defines [`CASES`] by the names of functions.
macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        /// All cases.
        pub const CASES: &[(&str, Case)] = &[$($((stringify!($case), $module::$case),)*)*];

        /// Has a test for each case, on what `$fixture` makes.
        #[macro_export]
        macro_rules! suite {
            ($fixture:expr) => {
                $($(#[test]
                fn $case() {
                    $crate::cases::run(stringify!($case), Box::new($fixture));
                })*)*
            };
        }
    };
}

cases! {
    objects:
        domains_are_busy_while_they_are_used
        completion_queues_are_busy_while_they_are_used
        names_of_the_dead_reach_nobody
        what_is_beyond_the_attributes_is_refused;
    states:
        states_go_in_order
        requests_may_be_posted_before_the_state_is_reached
        what_is_wrong_with_a_change_of_state_is_said_at_once
        failing_flushes_everything_in_order
        a_queue_pair_in_error_takes_nothing
        destroying_drops_completions
        errors_of_queue_pairs_are_told_once
        timers_are_ahead;
    data:
        sends_of_every_size_arrive_whole
        sends_carry_immediates
        payload_is_gathered_and_scattered
        writes_hit_what_they_name
        reads_get_what_they_name
        writes_with_immediate_take_a_receive
        atomics_act_on_eight_bytes
        inline_payload_is_taken_when_it_is_posted
        messages_arrive_in_order
        receives_posted_before_the_connection_count
        receives_are_posted_again
        a_write_is_there_before_what_announces_it
        receives_without_memory_are_posted_together
        datagrams_say_where_they_come_from;
    queues:
        only_signaled_requests_complete
        completions_come_in_order
        what_is_not_waited_for_may_be_told_of_with_a_later_one
        send_queues_take_what_was_said
        receive_queues_take_what_was_said
        many_queue_pairs_share_a_completion_queue
        watched_queues_are_told_of
        what_is_under_way_is_known;
    errors:
        a_receiver_that_is_late_is_waited_for
        retries_after_rnr_naks_end
        a_peer_that_is_silent_is_given_up
        a_send_that_is_longer_than_its_receive_fails
        what_is_not_granted_is_refused
        regions_end_where_they_end
        keys_are_good_in_their_domain_only
        atomics_that_are_not_aligned_are_refused
        one_failure_is_one_queue_pairs;
    keys:
        a_key_that_was_rotated_is_dead
        a_region_that_was_remapped_is_elsewhere
        a_key_that_was_revoked_is_dead
        a_revocation_by_request_completes
        a_region_that_was_deregistered_is_gone
        sends_invalidate_keys
        chunks_have_keys_of_their_own
        keys_change_behind_what_was_posted
        a_key_that_is_promised_is_in_force_behind_it
        keys_are_never_seen_again;
    connections:
        connections_are_asked_for_accepted_and_used
        private_data_is_bounded
        rejections_say_why
        nobody_listens
        nobody_answers
        ports_are_listened_on_once
        either_side_ends_a_connection
        a_queue_pair_that_fails_ends_its_connection
        a_queue_pair_that_is_destroyed_ends_its_connection
        a_request_that_is_withdrawn_is_over
        connections_have_their_states
        many_connections_at_once;
}

/// Runs the case of that name.
pub fn run(name: &str, fixture: Box<dyn Fixture>) {
    let (_, case) = CASES.iter().find(|(case, _)| *case == name).expect("there is such a case");
    case(fixture);
}
