//! What `lasthop run` says on the command line.

use lasthop_ipc::UplinkDriver;
use lasthop_sys::inherited_fd;
use lasthop_uplink_core::device::Wanted;
use std::os::fd::OwnedFd;

/// The command line, its descriptor taken.
#[derive(Debug)]
pub struct Arguments {
    /// Channel to the supervisor.
    pub supervisor: OwnedFd,
    /// The device.
    pub wanted: Wanted,
    /// Priority, as of nice(1).
    pub nice: i32,
}

impl Arguments {
    /// Reads `--supervisor-fd N --device NAME [--driver NAME] [--queues N] [--nice N] [--ours] [--no-gro]`. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut nice) = (None, 0);
        let mut wanted = Wanted { device: String::new(), driver: None, queues: 1, ours: false, gro: true };
        while let Some(option) = words.next() {
            match option.as_str() {
                "--ours" => {
                    wanted.ours = true;
                    continue;
                }
                "--no-gro" => {
                    wanted.gro = false;
                    continue;
                }
                _ => {}
            }
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "--supervisor-fd" => {
                    let fd = value.parse().ok().and_then(inherited_fd);
                    supervisor = Some(fd.ok_or_else(|| format!("{option} {value}: no such descriptor"))?);
                }
                "--device" => wanted.device = value,
                "--driver" => {
                    let driver = UplinkDriver::from_name(&value);
                    wanted.driver = Some(driver.ok_or_else(|| format!("{option} {value}: no such driver"))?);
                }
                "--queues" => wanted.queues = value.parse().map_err(|_| format!("{option} {value}: not a number"))?,
                "--nice" => nice = value.parse().map_err(|_| format!("{option} {value}: not a number"))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        let supervisor = supervisor.ok_or("--supervisor-fd is missing")?;
        Ok(Self { supervisor, wanted, nice })
    }
}
