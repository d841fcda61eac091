//! The cases, by topic.

mod connections;
mod data;
mod errors;
mod keys;
mod objects;
mod queues;
mod states;

use crate::fixture::Fixture;

/// A case: creates a world, and panics if the devices break the promise that it checks.
pub type Case = fn(Box<dyn Fixture>);

/// Defines [`CASES`] by the names of functions.
macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        /// All cases.
        pub const CASES: &[(&str, Case)] = &[$($((stringify!($case), $module::$case),)*)*];

        /// Defines a test for each case, on a fixture from `$fixture`.
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
        ids_of_destroyed_objects_are_unknown
        requests_beyond_the_attributes_are_refused;
    states:
        states_go_in_order
        requests_may_be_posted_before_the_state_is_reached
        invalid_state_transitions_are_refused_at_once
        failing_flushes_everything_in_order
        queue_pair_in_error_refuses_requests
        destroying_drops_completions
        queue_pair_errors_are_reported_once
        handled_timers_are_not_due;
    data:
        sends_of_every_size_arrive_whole
        sends_carry_immediates
        payload_is_gathered_and_scattered
        writes_change_only_the_named_bytes
        reads_return_the_named_bytes
        writes_with_immediate_take_a_receive
        atomics_act_on_eight_bytes
        inline_payload_is_copied_at_the_post
        messages_arrive_in_order
        receives_posted_in_init_are_used
        receives_are_posted_again
        write_arrives_before_its_announcing_send
        receives_without_memory_are_posted_together
        datagrams_report_their_sender;
    queues:
        only_signaled_requests_complete
        completions_come_in_order
        lazy_completions_may_merge_into_later_ones
        send_queues_accept_the_requested_depth
        receive_queues_accept_the_requested_depth
        many_queue_pairs_share_a_completion_queue
        watched_queues_are_reported
        outstanding_payload_is_under_way;
    errors:
        send_waits_for_a_late_receive
        rnr_retries_are_limited
        silent_peer_exceeds_the_retries
        a_send_that_is_longer_than_its_receive_fails
        access_without_rights_is_refused
        region_bounds_are_exact
        keys_are_good_in_their_domain_only
        atomics_that_are_not_aligned_are_refused
        failure_affects_one_queue_pair;
    keys:
        rotated_key_is_revoked
        remapped_region_uses_the_new_memory
        revoked_key_gives_no_access
        a_revocation_by_request_completes
        deregistered_region_is_inaccessible
        sends_invalidate_keys
        chunks_have_keys_of_their_own
        key_changes_follow_earlier_sends
        promised_key_is_in_force_for_later_sends
        keys_are_never_reused;
    connections:
        connections_are_requested_accepted_and_used
        private_data_is_bounded
        rejections_have_a_reason
        request_to_a_closed_port_is_rejected
        request_without_an_answer_is_rejected
        ports_are_listened_on_once
        either_side_may_disconnect
        a_queue_pair_that_fails_ends_its_connection
        a_queue_pair_that_is_destroyed_ends_its_connection
        a_request_that_is_withdrawn_is_over
        calls_in_the_wrong_connection_state_are_refused
        many_connections_at_once;
}

/// Runs the case of this name.
pub fn run(name: &str, fixture: Box<dyn Fixture>) {
    let (_, case) = CASES.iter().find(|(case, _)| *case == name).expect("a case has this name");
    case(fixture);
}
