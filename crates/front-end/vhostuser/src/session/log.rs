//! The dirty log: what a front-end that moves its guest to another host wants to know of what was written there ("Migration").
//!
//! The front-end names a file (SET_LOG_BASE), and says from when to when it counts (LOG_ALL, which comes and goes while rings run). The
//! switch is asked to log while both are there: which of the two comes first differs. The descriptor is kept, because LOG_ALL may come back.
//!
//! SET_VRING_ADDR's flag, which asks for used rings, changes nothing: with LOG_ALL they are logged like all else, by the place where they
//! really lie. The address that comes with it is not looked at: with an IOMMU QEMU has the guest's own there, not a physical one.

use super::*;
use lasthop_guestmem::MAX_LOG;

/// Bytes of guest memory for each byte of the log: a bit stands for 4 KiB.
const COVERS: u64 = 8 * 4096;

/// A log that the front-end has named: bytes, and where they begin in the file.
#[derive(Debug)]
pub(super) struct Log {
    fd: Foreign,
    desc: LogDesc,
}

impl<S: Switch> Session<S> {
    /// SET_LOG_BASE. Unlike other requests it is always answered, for the log before is let go of only then.
    pub(super) fn set_log(&mut self, mut form: Form) -> Result<Reply, Fault> {
        // Without the feature its body is an address, which means nothing here.
        self.needs(ProtocolFeatures::LOG_SHMFD)?;
        let (desc, fd): (LogDesc, _) = form.with_fd()?;
        let LogDesc { size, offset } = desc;
        if !size.is_multiple_of(8) || !offset.is_multiple_of(8) || size > MAX_LOG {
            return Err(Refusal::LogPlace { size, offset }.into());
        }
        let before = self.log.replace(Log { fd, desc });
        if let Err(fault) = self.log_or_not() {
            self.log = before;
            return Err(fault);
        }
        Ok(number(0))
    }

    /// Whether the front-end wants a log just now, and has named one.
    fn wants_log(&self) -> bool {
        self.log.is_some() && self.features.contains(Features::LOG_ALL)
    }

    /// How the switch is asked to log, if it is to.
    pub(super) fn log_wanted(&self) -> Result<Option<(Ask, Foreign)>, Fault> {
        let Some(Log { fd, desc: LogDesc { size, offset } }) = self.log.as_ref().filter(|_| self.wants_log()) else {
            return Ok(None);
        };
        let copy = fd.as_fd().try_clone_to_owned().map_err(|error| Refusal::Switch(error.to_string()))?;
        Ok(Some((Ask::Log { place: [0, *size, 0, *offset] }, Foreign::new(copy, fd.aside()))))
    }

    /// Has the switch log, or no longer.
    pub(super) fn log_or_not(&mut self) -> Result<(), Fault> {
        self.check_log(&self.regions)?;
        let (ask, fd) = match self.log_wanted()? {
            Some((ask, fd)) => (ask, Some(fd)),
            None if self.logs => (Ask::Log { place: [0; 4] }, None),
            None => return Ok(()),
        };
        self.show_rings()?;
        let on = fd.is_some();
        let answer = self.ask(ask, fd)?;
        self.gone_over(answer)?;
        self.logs = on;
        Ok(())
    }

    /// That the log in use reaches to the end of these regions.
    pub(super) fn check_log(&self, regions: &Regions) -> Result<(), Refusal> {
        let log = self.log.as_ref().filter(|_| self.wants_log());
        let needed = regions.end().div_ceil(COVERS).next_multiple_of(8);
        match log {
            Some(Log { desc: LogDesc { size, .. }, .. }) if *size < needed => {
                Err(Refusal::LogTooSmall { size: *size, needed })
            }
            _ => Ok(()),
        }
    }
}
