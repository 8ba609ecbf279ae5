//! What `lasthop run` starts this program with: descriptors, by number, and a first message with all else.

use lasthop_ipc::{Channel, SupervisorToSwitch, SwitchSettings, SwitchToSupervisor};
use lasthop_sys::hostview::HostView;
use lasthop_sys::sandbox::{Confinement, Handed};
use lasthop_sys::{Prompter, inherited_fd, map_pulse};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The descriptors of the command line.
#[derive(Debug)]
pub struct Arguments {
    /// To the supervisor.
    pub supervisor: Channel<SwitchToSupervisor, SupervisorToSwitch>,
    /// Memory that outlives this process.
    pub journal: Option<OwnedFd>,
    /// What the host's cores and VMs do, or why that is not known.
    pub view: Option<Result<HostView, Errno>>,
    /// Who gets helpers out of the idle class.
    pub prompter: Option<Prompter>,
    /// What its sandbox is made of.
    pub handed: Handed,
}

impl Arguments {
    /// Reads `--supervisor-fd N [--journal-fd N] [--host-view-fd N] [--boost-fd N] [--pulse-fd N]`. Run first thing in `main`.
    pub fn take(words: &[String]) -> Result<Self, String> {
        let fd = |option: &str| {
            let Some(at) = words.iter().position(|word| word == option) else { return Ok(None) };
            let fd = words.get(at + 1).and_then(|number| inherited_fd(number.parse().ok()?));
            fd.map(Some).ok_or_else(|| format!("{option}: no such descriptor"))
        };
        fd("--pulse-fd")?.map_or(Ok(()), map_pulse).map_err(|e| format!("--pulse-fd: {e}"))?;
        Ok(Self {
            journal: fd("--journal-fd")?,
            view: fd("--host-view-fd")?.map(HostView::map),
            prompter: fd("--boost-fd")?.map(Prompter::new),
            handed: Handed { root: fd("--root-fd")?, rules: fd("--rules-fd")? },
            supervisor: Channel::new(fd("--supervisor-fd")?.ok_or("--supervisor-fd is missing")?),
        })
    }

    /// Waits for what the supervisor says first.
    pub fn first_message(&mut self) -> Result<(Confinement, SwitchSettings), Box<dyn std::error::Error>> {
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.supervisor, PollFlags::IN)], None))?;
        match self.supervisor.recv().map_err(|e| format!("supervisor: {e}"))? {
            (SupervisorToSwitch::Start(confinement, settings), _) => Ok((confinement, settings)),
            (other, _) => Err(format!("the supervisor began with {other:?}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: [&str; 7] =
        ["--supervisor-fd", "--journal-fd", "--host-view-fd", "--boost-fd", "--root-fd", "--rules-fd", "--pulse-fd"];

    /// A switch without its journal would deliver twice what it had under way, and nobody would know why.
    #[test]
    fn a_descriptor_that_is_not_there_is_no_option_that_was_left_out() {
        for option in OPTIONS {
            for number in [&["x".to_owned()][..], &["999999".to_owned()], &[]] {
                let words = [&[option.to_owned()][..], number].concat();
                assert_eq!(Arguments::take(&words).unwrap_err(), format!("{option}: no such descriptor"), "{number:?}");
            }
        }
        assert_eq!(Arguments::take(&[]).unwrap_err(), "--supervisor-fd is missing");
    }
}
