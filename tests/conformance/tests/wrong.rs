//! Checks that each case fails on a provider that breaks its promise.

use conformance::roce::RocePair;
use conformance::wrong::{Fault, Wrong};
use conformance::{CASES, Case};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

/// Faults, and the case that must detect each.
const BREAKS: &[(Fault, &str)] = &[
    (Fault::DomainsAreNeverBusy, "domains_are_busy_while_they_are_used"),
    (Fault::QueuesAreNeverBusy, "completion_queues_are_busy_while_they_are_used"),
    (Fault::ReusesIds, "ids_of_destroyed_objects_are_unknown"),
    (Fault::HasNoLimits, "requests_beyond_the_attributes_are_refused"),
    (Fault::SkipsStates, "states_go_in_order"),
    (Fault::RefusesEarlyPosts, "requests_may_be_posted_before_the_state_is_reached"),
    (Fault::ConnectsFromAnywhere, "invalid_state_transitions_are_refused_at_once"),
    (Fault::ForgetsFlushes, "failing_flushes_everything_in_order"),
    (Fault::CompletesOutOfOrder, "failing_flushes_everything_in_order"),
    (Fault::AcceptsPostsInError, "queue_pair_in_error_refuses_requests"),
    (Fault::KeepsCompletions, "destroying_drops_completions"),
    (Fault::ReportsErrorsTwice, "queue_pair_errors_are_reported_once"),
    (Fault::AlwaysDue, "handled_timers_are_not_due"),
    (Fault::MiscountsBytes, "sends_of_every_size_arrive_whole"),
    (Fault::TakesTheFirstWindow, "payload_is_gathered_and_scattered"),
    (Fault::LosesImmediates, "sends_carry_immediates"),
    (Fault::LosesImmediates, "writes_with_immediate_take_a_receive"),
    (Fault::WritesOneByteFurther, "writes_change_only_the_named_bytes"),
    (Fault::ReadsOneByteFurther, "reads_return_the_named_bytes"),
    (Fault::AddsOneMore, "atomics_act_on_eight_bytes"),
    (Fault::ForgetsInlinePayload, "inline_payload_is_copied_at_the_post"),
    (Fault::SwapsReceives, "messages_arrive_in_order"),
    (Fault::LosesEarlyReceives, "receives_posted_in_init_are_used"),
    (Fault::RepostsNothing, "receives_are_posted_again"),
    (Fault::AnnouncesFirst, "write_arrives_before_its_announcing_send"),
    (Fault::PostsOneReceiveOfMany, "receives_without_memory_are_posted_together"),
    (Fault::ReportsEarlierCompletions, "lazy_completions_may_merge_into_later_ones"),
    (Fault::LosesSources, "datagrams_report_their_sender"),
    (Fault::SignalsEverything, "only_signaled_requests_complete"),
    (Fault::CompletesOutOfOrder, "completions_come_in_order"),
    (Fault::AcceptsFewerSends, "send_queues_accept_the_requested_depth"),
    (Fault::AcceptsFewerReceives, "receive_queues_accept_the_requested_depth"),
    (Fault::MisnamesQueuePairs, "many_queue_pairs_share_a_completion_queue"),
    (Fault::NeverReportsWatchedQueues, "watched_queues_are_reported"),
    (Fault::ReportsNothingUnderWay, "outstanding_payload_is_under_way"),
    (Fault::NeverRetries, "send_waits_for_a_late_receive"),
    (Fault::RetriesForEver, "rnr_retries_are_limited"),
    (Fault::WaitsForEver, "silent_peer_exceeds_the_retries"),
    (Fault::MisnamesErrors, "a_send_that_is_longer_than_its_receive_fails"),
    (Fault::MisnamesErrors, "access_without_rights_is_refused"),
    (Fault::GrantsEverything, "access_without_rights_is_refused"),
    (Fault::RegionsBeginEarlier, "region_bounds_are_exact"),
    (Fault::HasOneDomain, "keys_are_good_in_their_domain_only"),
    (Fault::HasOneDomain, "sends_invalidate_keys"),
    (Fault::AlignsAtomics, "atomics_that_are_not_aligned_are_refused"),
    (Fault::FailsNeighbours, "failure_affects_one_queue_pair"),
    (Fault::ReturnsNewKeysOnly, "rotated_key_is_revoked"),
    (Fault::RemapsNothing, "remapped_region_uses_the_new_memory"),
    (Fault::RevokesNothing, "revoked_key_gives_no_access"),
    (Fault::RevokesNothing, "a_revocation_by_request_completes"),
    (Fault::DeregistersNothing, "deregistered_region_is_inaccessible"),
    (Fault::DropsInvalidations, "sends_invalidate_keys"),
    (Fault::HasOneKeyForAllChunks, "chunks_have_keys_of_their_own"),
    (Fault::KeepsChunkKeys, "chunks_have_keys_of_their_own"),
    (Fault::KeepsChunkKeys, "key_changes_follow_earlier_sends"),
    (Fault::KeepsChunkKeys, "promised_key_is_in_force_for_later_sends"),
    (Fault::DrawsKeysAnew, "keys_are_never_reused"),
    (Fault::LosesPrivateData, "connections_are_requested_accepted_and_used"),
    (Fault::CutsPrivateData, "private_data_is_bounded"),
    (Fault::LosesPrivateData, "rejections_have_a_reason"),
    (Fault::MisnamesReasons, "rejections_have_a_reason"),
    (Fault::ListensEverywhere, "request_to_a_closed_port_is_rejected"),
    (Fault::NeverGivesUp, "request_without_an_answer_is_rejected"),
    (Fault::ListensTwice, "ports_are_listened_on_once"),
    (Fault::ReportsEndsTwice, "either_side_may_disconnect"),
    (Fault::FailsSilently, "a_queue_pair_that_fails_ends_its_connection"),
    (Fault::DestroysNothing, "a_queue_pair_that_is_destroyed_ends_its_connection"),
    (Fault::ForgetsEnds, "a_request_that_is_withdrawn_is_over"),
    (Fault::AcceptsAnything, "calls_in_the_wrong_connection_state_are_refused"),
    (Fault::MixesUpConnections, "many_connections_at_once"),
];

fn passes(fault: Fault, case: Case) -> bool {
    let pair = Box::new(RocePair::new(1, false, |roce| Wrong::new(roce, fault)));
    catch_unwind(AssertUnwindSafe(|| case(pair))).is_ok()
}

/// Every fault is detected, and every case detects one.
#[test]
fn every_case_detects_a_fault() {
    set_hook(Box::new(|_| ()));
    let mut unseen = Vec::new();
    for &(fault, name) in BREAKS {
        let (_, case) = CASES.iter().find(|(case, _)| *case == name).expect("a case has this name");
        if passes(fault, *case) {
            unseen.push(format!("{name} passes although {fault:?}"));
        }
    }
    for (name, _) in CASES {
        if !BREAKS.iter().any(|(_, case)| case == name) {
            unseen.push(format!("{name} has never been seen to fail"));
        }
    }
    drop(std::panic::take_hook());
    assert!(unseen.is_empty(), "{unseen:#?}");
}
