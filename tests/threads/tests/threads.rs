//! Tests of halting loops and of shared memory.

use threads::{model, queue_line, races};

#[test]
fn loop_is_woken_for_each_item_of_another() {
    model::loop_is_woken_for_each_item_of_another();
}

#[test]
fn loop_is_woken_by_two_others() {
    model::loop_is_woken_by_two_others();
}

#[test]
fn loop_that_continues_a_halt_is_woken_by_later_work() {
    model::loop_that_continues_a_halt_is_woken_by_later_work();
}

#[test]
fn ring_is_accessed_by_the_loop_or_the_controller() {
    queue_line::ring_is_accessed_by_the_loop_or_the_controller();
}

#[test]
fn two_threads_hand_frames_over_and_wake_each_other() {
    races::frames_are_handed_over_and_the_loop_is_woken();
}
