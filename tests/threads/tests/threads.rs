//! Loops that halt, and memory that several use.

use threads::{model, queue_line, races};

#[test]
fn a_loop_hears_of_each_thing_that_another_gives_it() {
    model::a_loop_hears_of_each_thing_that_another_gives_it();
}

#[test]
fn a_loop_hears_of_two_others() {
    model::a_loop_hears_of_two_others();
}

#[test]
fn a_loop_that_goes_on_halting_hears_of_what_comes_then() {
    model::a_loop_that_goes_on_halting_hears_of_what_comes_then();
}

#[test]
fn a_ring_is_the_loops_or_the_controllers() {
    queue_line::a_ring_is_the_loops_or_the_controllers();
}

#[test]
fn two_threads_hand_frames_over_and_wake_each_other() {
    races::frames_are_handed_over_and_the_loop_is_woken();
}
