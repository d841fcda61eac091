/// Makes tests of functions of the version, which run in both versions.
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

mod basic;
mod failover;
mod hostile;
mod moments;
mod silence;
mod streams;
mod version1;
