//! Each case fails on a provider that breaks what the case is about.

use conformance::roce::RocePair;
use conformance::wrong::{Fault, Wrong};
use conformance::{CASES, Case};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

/// What is broken, and the case that has to see it.
const BREAKS: &[(Fault, &str)] = &[
    (Fault::DomainsAreNeverBusy, "domains_are_busy_while_they_are_used"),
    (Fault::QueuesAreNeverBusy, "completion_queues_are_busy_while_they_are_used"),
    (Fault::NamesComeBack, "names_of_the_dead_reach_nobody"),
    (Fault::HasNoLimits, "what_is_beyond_the_attributes_is_refused"),
    (Fault::SkipsStates, "states_go_in_order"),
    (Fault::RefusesEarlyPosts, "requests_may_be_posted_before_the_state_is_reached"),
    (Fault::ConnectsFromAnywhere, "what_is_wrong_with_a_change_of_state_is_said_at_once"),
    (Fault::ForgetsFlushes, "failing_flushes_everything_in_order"),
    (Fault::CompletesOutOfOrder, "failing_flushes_everything_in_order"),
    (Fault::TakesPostsInError, "a_queue_pair_in_error_takes_nothing"),
    (Fault::KeepsCompletions, "destroying_drops_completions"),
    (Fault::TellsErrorsTwice, "errors_of_queue_pairs_are_told_once"),
    (Fault::IsAlwaysDue, "timers_are_ahead"),
    (Fault::MiscountsBytes, "sends_of_every_size_arrive_whole"),
    (Fault::TakesTheFirstWindow, "payload_is_gathered_and_scattered"),
    (Fault::LosesImmediates, "sends_carry_immediates"),
    (Fault::LosesImmediates, "writes_with_immediate_take_a_receive"),
    (Fault::WritesOneByteFurther, "writes_hit_what_they_name"),
    (Fault::ReadsOneByteFurther, "reads_get_what_they_name"),
    (Fault::AddsOneMore, "atomics_act_on_eight_bytes"),
    (Fault::ForgetsInlinePayload, "inline_payload_is_taken_when_it_is_posted"),
    (Fault::SwapsReceives, "messages_arrive_in_order"),
    (Fault::LosesEarlyReceives, "receives_posted_before_the_connection_count"),
    (Fault::RepostsNothing, "receives_are_posted_again"),
    (Fault::AnnouncesFirst, "a_write_is_there_before_what_announces_it"),
    (Fault::PostsOneReceiveOfMany, "receives_without_memory_are_posted_together"),
    (Fault::TellsOfEarlierOnes, "what_is_not_waited_for_may_be_told_of_with_a_later_one"),
    (Fault::LosesSources, "datagrams_say_where_they_come_from"),
    (Fault::SignalsEverything, "only_signaled_requests_complete"),
    (Fault::CompletesOutOfOrder, "completions_come_in_order"),
    (Fault::TakesFewerSends, "send_queues_take_what_was_said"),
    (Fault::TakesFewerReceives, "receive_queues_take_what_was_said"),
    (Fault::MisnamesQueuePairs, "many_queue_pairs_share_a_completion_queue"),
    (Fault::NeverTellsOfQueues, "watched_queues_are_told_of"),
    (Fault::NothingIsUnderWay, "what_is_under_way_is_known"),
    (Fault::NeverRetries, "a_receiver_that_is_late_is_waited_for"),
    (Fault::RetriesForEver, "retries_after_rnr_naks_end"),
    (Fault::WaitsForEver, "a_peer_that_is_silent_is_given_up"),
    (Fault::MisnamesErrors, "a_send_that_is_longer_than_its_receive_fails"),
    (Fault::MisnamesErrors, "what_is_not_granted_is_refused"),
    (Fault::GrantsEverything, "what_is_not_granted_is_refused"),
    (Fault::RegionsBeginEarlier, "regions_end_where_they_end"),
    (Fault::HasOneDomain, "keys_are_good_in_their_domain_only"),
    (Fault::HasOneDomain, "sends_invalidate_keys"),
    (Fault::AlignsAtomics, "atomics_that_are_not_aligned_are_refused"),
    (Fault::FailsNeighbours, "one_failure_is_one_queue_pairs"),
    (Fault::OnlySaysNewKeys, "a_key_that_was_rotated_is_dead"),
    (Fault::RemapsNothing, "a_region_that_was_remapped_is_elsewhere"),
    (Fault::RevokesNothing, "a_key_that_was_revoked_is_dead"),
    (Fault::RevokesNothing, "a_revocation_by_request_completes"),
    (Fault::DeregistersNothing, "a_region_that_was_deregistered_is_gone"),
    (Fault::DropsInvalidations, "sends_invalidate_keys"),
    (Fault::HasOneKeyForAllChunks, "chunks_have_keys_of_their_own"),
    (Fault::KeepsChunkKeys, "chunks_have_keys_of_their_own"),
    (Fault::KeepsChunkKeys, "keys_change_behind_what_was_posted"),
    (Fault::KeepsChunkKeys, "a_key_that_is_promised_is_in_force_behind_it"),
    (Fault::DrawsKeysAnew, "keys_are_never_seen_again"),
    (Fault::LosesPrivateData, "connections_are_asked_for_accepted_and_used"),
    (Fault::CutsPrivateData, "private_data_is_bounded"),
    (Fault::LosesPrivateData, "rejections_say_why"),
    (Fault::MisnamesReasons, "rejections_say_why"),
    (Fault::ListensEverywhere, "nobody_listens"),
    (Fault::NeverGivesUp, "nobody_answers"),
    (Fault::ListensTwice, "ports_are_listened_on_once"),
    (Fault::TellsEndsTwice, "either_side_ends_a_connection"),
    (Fault::FailsInSilence, "a_queue_pair_that_fails_ends_its_connection"),
    (Fault::DestroysNothing, "a_queue_pair_that_is_destroyed_ends_its_connection"),
    (Fault::ForgetsEnds, "a_request_that_is_withdrawn_is_over"),
    (Fault::AcceptsAnything, "connections_have_their_states"),
    (Fault::MixesUpConnections, "many_connections_at_once"),
];

fn passes(fault: Fault, case: Case) -> bool {
    let pair = Box::new(RocePair::new(1, false, |roce| Wrong::new(roce, fault)));
    catch_unwind(AssertUnwindSafe(|| case(pair))).is_ok()
}

/// Every case, and every break.
#[test]
fn every_case_sees_what_it_is_about() {
    set_hook(Box::new(|_| ()));
    let mut unseen = Vec::new();
    for &(fault, name) in BREAKS {
        let (_, case) = CASES.iter().find(|(case, _)| *case == name).expect("such a case");
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
