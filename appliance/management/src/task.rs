//! [`Task`]: the command that runs longer than one call. All report to one queue, so one runs at a time, and only who
//! started it takes its progress or cancels it.

use crate::appliance::{Appliance, Told};
use crate::caller::Caller;
use crate::config::Role;
use crate::console::{Managed, Progress};
use crate::orders::Order;

const BUSY: &str =
    "another command runs, here, on the console or over HTTP; try again when it has ended";

/// Who takes the progress of the running command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// No command runs.
    #[default]
    None,
    /// The operator who started it, with this role.
    Followed(Role),
    /// A command without a client: the client has disconnected, or did not wait for the end.
    Left,
}

impl Task {
    /// Consumes the progress so far, so that another command can start. The end of a command without a client is logged.
    ///
    /// # Errors
    ///
    /// A command runs.
    fn make_room(&mut self, mut next: impl FnMut() -> Option<Progress>) -> Result<(), String> {
        if let Task::Followed(_) = self {
            return Err(BUSY.into());
        }
        while let Some(progress) = next() {
            let Progress::Done(result) = progress else { continue };
            match (core::mem::take(self), result) {
                (Task::None, _) => {}
                (_, Ok(done)) => log::info!("a command without a client has ended: {done}"),
                (_, Err(why)) => log::error!("a command without a client has failed: {why}"),
            }
        }
        match self {
            Task::None => Ok(()),
            _ => Err(BUSY.into()),
        }
    }

    /// Records that the client of the running command has disconnected.
    pub(crate) fn leave(&mut self) {
        if let Task::Followed(_) = self {
            *self = Task::Left;
        }
    }
}

/// Executes a command that may run longer than this call, unless another one runs. One of a user with a lower role is
/// cancelled, so that it cannot keep the caller from `save`.
pub(crate) fn start(
    appliance: &mut dyn Appliance,
    caller: &Caller,
    run: impl FnOnce(&mut dyn Appliance) -> Told,
) -> Told {
    let mut task = *appliance.task();
    if let Task::Followed(role) = task
        && role < caller.role
    {
        let _ = appliance.carry_out(Order::Cancel);
        return Err(format!("a command of a user with the role {role} is cancelled; try again"));
    }
    let room = task.make_room(|| appliance.progress());
    *appliance.task() = task;
    room?;
    let told = run(appliance)?;
    if let Managed::Started = told {
        *appliance.task() = Task::Followed(caller.role);
    }
    Ok(told)
}

/// The next progress of the running command.
pub(crate) fn follow(appliance: &mut dyn Appliance) -> Option<Progress> {
    let progress = appliance.progress();
    if let Some(Progress::Done(_)) = progress {
        *appliance.task() = Task::None;
    }
    progress
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_goes_to_who_started_the_command() {
        let done = || Some(Progress::Done(Ok(String::new())));
        let mut task = Task::Followed(Role::Operate);
        assert!(task.make_room(|| panic!("it belongs to another operator")).is_err());
        task.leave();
        assert!(task.make_room(|| None).is_err(), "it still runs");
        let mut left = [done(), Some(Progress::Line(String::new()))].into_iter();
        assert!(task.make_room(|| left.next_back().flatten()).is_ok());
        assert_eq!(task, Task::None);
        task.leave();
        assert_eq!(task, Task::None);
        let mut stale = [done()].into_iter();
        assert!(task.make_room(|| stale.next().flatten()).is_ok() && stale.next().is_none());
    }
}
