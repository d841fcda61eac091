//! From when on a change of the configuration counts: declared with each key, so that `set` says what is true.

/// From when on a changed key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// As soon as it is set.
    AtOnce,
    /// When the appliance boots with it, after `save`.
    AtBoot,
}

/// The effect that a key is declared with, or [`Effect::AtBoot`].
macro_rules! declared {
    () => {
        $crate::config::effect::Effect::AtBoot
    };
    ($effect:ident) => {
        $crate::config::effect::Effect::$effect
    };
}
pub(crate) use declared;
