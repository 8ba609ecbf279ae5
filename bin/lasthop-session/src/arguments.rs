//! What `lasthop run` says on the command line.

use lasthop_ipc::Channel;
use lasthop_session_ipc::{LONGEST_MESSAGE, SessionToSupervisor, SupervisorToSession};
use lasthop_sys::{inherited_fd, map_pulse};

/// The command line, its descriptors taken.
#[derive(Debug)]
pub struct Arguments {
    /// To the supervisor.
    pub supervisor: Channel<SessionToSupervisor, SupervisorToSession>,
    /// Name of the port.
    pub port: String,
}

impl Arguments {
    /// Reads `--supervisor-fd N --port NAME [--pulse-fd N]`. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut port) = (None, None);
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            if option == "--port" {
                port = Some(value);
                continue;
            }
            let fd =
                value.parse().ok().and_then(inherited_fd).ok_or_else(|| format!("{option}: no such descriptor"))?;
            match option.as_str() {
                "--supervisor-fd" => supervisor = Some(Channel::within(fd, LONGEST_MESSAGE)),
                "--pulse-fd" => map_pulse(fd).map_err(|e| format!("{option}: {e}"))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        let supervisor = supervisor.ok_or("--supervisor-fd is missing")?;
        Ok(Self { supervisor, port: port.ok_or("--port is missing")? })
    }
}
