//! What `lasthop run` starts this program with: descriptors, by number, and a first message with all else.

use lasthop_ipc::{Channel, SupervisorToSwitch, SwitchSettings, SwitchToSupervisor};
use lasthop_sys::hostview::HostView;
use lasthop_sys::sandbox::Confinement;
use lasthop_sys::{Prompter, inherited_fd, map_pulse};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;

/// The descriptors of the command line.
#[derive(Debug)]
pub struct Arguments {
    /// To the supervisor.
    pub supervisor: Channel<SwitchToSupervisor, SupervisorToSwitch>,
    /// Memory that outlives this process.
    pub journal: Option<OwnedFd>,
    /// What the host's cores and VMs do.
    pub view: Option<HostView>,
    /// Who gets helpers out of the idle class.
    pub prompter: Option<Prompter>,
}

impl Arguments {
    /// Reads `--supervisor-fd N [--journal-fd N] [--host-view-fd N] [--boost-fd N] [--pulse-fd N]`. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut journal, mut view, mut prompter) = (None, None, None, None);
        while let Some(option) = words.next() {
            let number = words.next().and_then(|number| number.parse().ok());
            let fd = number.and_then(inherited_fd).ok_or_else(|| format!("{option}: no such descriptor"))?;
            match option.as_str() {
                "--supervisor-fd" => supervisor = Some(Channel::new(fd)),
                "--journal-fd" => journal = Some(fd),
                "--host-view-fd" => {
                    let mapped = HostView::map(fd);
                    view = mapped.inspect_err(|e| tracing::warn!("not known what cores and VMs do: {e}")).ok();
                }
                "--boost-fd" => prompter = Some(Prompter::new(fd)),
                "--pulse-fd" => map_pulse(fd).map_err(|e| format!("{option}: {e}"))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        Ok(Self { supervisor: supervisor.ok_or("--supervisor-fd is missing")?, journal, view, prompter })
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
