/// Makes a test for each version of functions that take the version.
macro_rules! in_both_versions {
    ($($name:ident)*) => {
        mod version_1 {
            $(#[test] fn $name() { super::$name(1) })*
        }
        mod version_2 {
            $(#[test] fn $name() { super::$name(2) })*
        }
    };
}

mod accepts;
mod basic;
mod cards;
mod endings;
mod failover;
mod figures;
mod given_up;
mod handshakes;
mod hostile;
mod limits;
mod links;
mod moments;
mod negotiation;
mod patience;
mod silence;
mod streams;
mod version1;
mod windows;
