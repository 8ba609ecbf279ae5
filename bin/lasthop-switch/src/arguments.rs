//! What `lasthop run` starts this program with: descriptors, by number, and a first message with all else.

use lasthop_ipc::{Channel, SupervisorToSwitch, SwitchSettings, SwitchToSupervisor};
use lasthop_sys::hostview::HostView;
use lasthop_sys::sandbox::Confinement;
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
}

impl Arguments {
    /// Reads `--supervisor-fd N [--journal-fd N] [--host-view-fd N] [--boost-fd N] [--pulse-fd N]`. Run first thing in `main`.
    pub fn take(words: &[String]) -> Result<Self, String> {
        let fd = |option| {
            let at = words.iter().position(|word| word == option)?;
            words.get(at + 1)?.parse().ok().and_then(inherited_fd)
        };
        fd("--pulse-fd").map_or(Ok(()), map_pulse).map_err(|e| format!("--pulse-fd: {e}"))?;
        Ok(Self {
            supervisor: Channel::new(fd("--supervisor-fd").ok_or("--supervisor-fd is missing, or no such descriptor")?),
            journal: fd("--journal-fd"),
            view: fd("--host-view-fd").map(HostView::map),
            prompter: fd("--boost-fd").map(Prompter::new),
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
