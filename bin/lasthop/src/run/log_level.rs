//! Which lines of the log are written, here and by control, from now on.

use super::supervisor::Supervisor;
use lasthop_log::levels;
use lasthop_management_ipc::SupervisorToControl;
use tracing::{info, warn};

impl Supervisor {
    /// Control says what somebody wants.
    pub(super) fn set_log_level(&mut self, request: u64, run: Option<String>, control: Option<String>) {
        if let Some(level) = run {
            let before = levels::level();
            // Said at one of the two levels, if either lets it be: whoever reads the log sees that it changes.
            let is_said = tracing::enabled!(tracing::Level::INFO);
            info!("log level: {level} instead of {before}");
            match levels::set_level(&level) {
                Ok(()) if !is_said => info!("log level: {level} instead of {before}"),
                Ok(()) => {}
                Err(e) => warn!("log level: {e}"),
            }
        }
        self.control_level = control.or(self.control_level.take());
        self.tell_log_level(Some(request));
    }

    /// As an answer, or to a new control.
    pub(super) fn tell_log_level(&mut self, request: Option<u64>) {
        if request.is_some() || self.control_level.is_some() {
            let (run, control) = (levels::level(), self.control_level.clone());
            self.control.send(SupervisorToControl::LogLevel { request, run, control }, None);
        }
    }
}
