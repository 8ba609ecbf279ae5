//! What `lasthop run` says on the command line.

use lasthop_sys::inherited_fd;
use lasthop_text::parse_mac;
use lasthop_uplink_core::device::{Kept, Wanted};
use lasthop_uplink_ipc::UplinkDriver;
use std::os::fd::OwnedFd;

/// The command line, its descriptor taken.
#[derive(Debug)]
pub struct Arguments {
    /// Channel to the supervisor.
    pub supervisor: OwnedFd,
    /// The device.
    pub wanted: Wanted,
    /// The device as the process before us has left it, if there was one.
    pub kept: Option<Kept>,
    /// The supervisor's page that this process counts in.
    pub counters: OwnedFd,
    /// Priority, as of nice(1).
    pub nice: i32,
}

/// Descriptor number of the first that the process before us has left.
const FIRST_KEPT: i32 = 5;

impl Arguments {
    /// Reads `--supervisor-fd N --counters-fd N --device NAME [--driver NAME] [--queues N] [--nice N] [--ours] [--made MAC] [--leave-down] [--no-gro]
    /// [--kept N --mode TEXT]`: so many descriptors of the open device, from 5 on, and how it is used. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut counters, mut nice) = (None, None, 0);
        let (mut descriptors, mut mode) = (Vec::new(), String::new());
        let mut wanted = Wanted {
            device: String::new(),
            driver: None,
            queues: 1,
            ours: false,
            gro: true,
            bring_up: true,
            made: None,
            max_size: None,
            pipe: None,
        };
        while let Some(option) = words.next() {
            match option.as_str() {
                "--ours" => {
                    wanted.ours = true;
                    continue;
                }
                "--leave-down" => {
                    wanted.bring_up = false;
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
                "--counters-fd" => {
                    let fd = value.parse().ok().and_then(inherited_fd);
                    counters = Some(fd.ok_or_else(|| format!("{option} {value}: no such descriptor"))?);
                }
                "--device" => wanted.device = value,
                "--driver" => {
                    let driver = UplinkDriver::from_name(&value);
                    wanted.max_size = UplinkDriver::file_limit(&value);
                    wanted.pipe = UplinkDriver::pipe_owner(&value);
                    wanted.driver = Some(driver.ok_or_else(|| format!("{option} {value}: no such driver"))?);
                }
                "--queues" => wanted.queues = value.parse().map_err(|_| format!("{option} {value}: not a number"))?,
                "--kept" => {
                    let count: i32 = value.parse().map_err(|_| format!("{option} {value}: not a number"))?;
                    for fd in (FIRST_KEPT..).take(count.max(0) as usize) {
                        descriptors.push(inherited_fd(fd).ok_or_else(|| format!("{option}: no descriptor {fd}"))?);
                    }
                }
                "--mode" => mode = value,
                "--made" => {
                    wanted.made =
                        Some(parse_mac(&value).map_err(|_| format!("{option} {value}: not an Ethernet address"))?);
                }
                "--nice" => nice = value.parse().map_err(|_| format!("{option} {value}: not a number"))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        let supervisor = supervisor.ok_or("--supervisor-fd is missing")?;
        let counters = counters.ok_or("--counters-fd is missing")?;
        let kept = (!descriptors.is_empty()).then_some(Kept { descriptors, mode });
        Ok(Self { supervisor, wanted, kept, counters, nice })
    }
}
