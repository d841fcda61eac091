//! [`Effect`]: when a change of a key takes effect. Each key declares it, so that the reply of `set` is correct.

/// When a changed key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Immediately.
    AtOnce,
    /// After `save`, at the next boot.
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
