//! Arguments of `lasthop run`.

use super::store::SavedUplink;
use lasthop_ipc::UplinkDriver;
use std::path::PathBuf;

/// Longest port name, in characters.
const MAX_NAME: usize = 63;
/// Most queue pairs of an uplink.
const MAX_QUEUES: u16 = 16;

/// Run the switch in the foreground until SIGTERM: a learning switch over the ports named here and those added later.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// CPUs the switch may use, like 0,2-3 [default: every CPU this process may use]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Directory of the API socket and the lock
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    pub run_dir: PathBuf,
    /// Directory where ports added at run time are remembered
    #[arg(long, value_name = "DIR", default_value = "/var/lib/lasthop")]
    pub state_dir: PathBuf,
    /// A port and its vhost-user socket; lasthop listens there, or with ",client" connects to it. May be repeated
    #[arg(long = "port", value_name = "NAME=PATH[,client]", value_parser = parse_port)]
    pub ports: Vec<PortArg>,
    /// An uplink: a port that is a network interface of this host, or a TAP device that is made. Drivers: tap, af_packet, af_xdp. May be
    /// repeated
    #[arg(long = "uplink", value_name = "NAME=DEVICE[,DRIVER][,queues=N][,nice=N]", value_parser = parse_uplink)]
    pub uplinks: Vec<SavedUplink>,
    /// Milliseconds an uplink may take to answer before it is replaced
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(20..))]
    pub uplink_limit_ms: u64,
    /// Microseconds a worker looks for more packets before it sleeps
    #[arg(long, value_name = "US", default_value_t = 5)]
    pub spin_us: u32,
    /// Directory of lasthop-switch, lasthop-control and lasthop-uplink
    #[arg(long, value_name = "DIR", hide = true)]
    pub libexec: Option<PathBuf>,
}

/// One `--port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortArg {
    /// Name; checked.
    pub name: String,
    /// Path as given.
    pub path: PathBuf,
    /// Whether lasthop connects.
    pub client: bool,
}

/// Checks a port name: 1 to 63 characters of `[A-Za-z0-9._-]`. The error says what is wrong and what would be right.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("the port name has {} characters; use 1 to {MAX_NAME}", name.len()));
    }
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
        Some(bad) => Err(format!("{bad:?} cannot be in a port name; use letters, digits, '.', '_' and '-'")),
        None => Ok(()),
    }
}

fn parse_port(text: &str) -> Result<PortArg, String> {
    let (name, rest) = text.split_once('=').ok_or("no '='; write NAME=PATH or NAME=PATH,client")?;
    check_name(name)?;
    let (path, client) = match rest.split_once(',') {
        None => (rest, false),
        Some((path, "client")) => (path, true),
        Some((_, option)) => {
            return Err(format!("unknown option {option:?}; the only one is \"client\", and a path has no comma"));
        }
    };
    if path.is_empty() {
        return Err("no path after '='; write NAME=PATH".into());
    }
    Ok(PortArg { name: name.into(), path: path.into(), client })
}

/// Checks an uplink's name, interface, driver and number of queues. The error says what is wrong and what would be right.
pub fn check_uplink(uplink: &SavedUplink) -> Result<(), String> {
    check_name(&uplink.name)?;
    let device = &uplink.device;
    if device.is_empty()
        || device.len() > 15
        || device.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
    {
        return Err(format!("{device:?} cannot be an interface; its name has 1 to 15 characters, no '/' and no space"));
    }
    if let Some(driver) = &uplink.driver
        && UplinkDriver::from_name(driver).is_none()
    {
        let known = UplinkDriver::ALL.map(UplinkDriver::name).join(", ");
        return Err(format!("there is no driver {driver:?}; choose one of {known}"));
    }
    if !(1..=MAX_QUEUES).contains(&uplink.queues) {
        return Err(format!("{} queues; use 1 to {MAX_QUEUES}", uplink.queues));
    }
    if !(-20..=19).contains(&uplink.nice) {
        return Err(format!("nice {}; use -20 (first) to 19 (last)", uplink.nice));
    }
    Ok(())
}

fn parse_uplink(text: &str) -> Result<SavedUplink, String> {
    let (name, rest) = text.split_once('=').ok_or("no '='; write NAME=DEVICE or NAME=DEVICE,DRIVER")?;
    let mut words = rest.split(',');
    let device = words.next().unwrap_or_default().into();
    let mut uplink = SavedUplink { name: name.into(), device, driver: None, queues: 1, nice: 0 };
    for word in words {
        match word.split_once('=') {
            None => uplink.driver = Some(word.into()),
            Some(("queues", n)) => uplink.queues = n.parse().map_err(|_| format!("{word}: not a number"))?,
            Some(("nice", n)) => uplink.nice = n.parse().map_err(|_| format!("{word}: not a number"))?,
            Some(_) => {
                return Err(format!("unknown option {word:?}; there are a driver's name, queues=N and nice=N"));
            }
        }
    }
    check_uplink(&uplink)?;
    Ok(uplink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_name_path_and_perhaps_client() {
        let port = |name: &str, path: &str, client| PortArg { name: name.into(), path: path.into(), client };
        assert_eq!(parse_port("vm1=/run/vm1.sock").unwrap(), port("vm1", "/run/vm1.sock", false));
        assert_eq!(parse_port("a.b-c_d=/x=y,client").unwrap(), port("a.b-c_d", "/x=y", true));
        for bad in ["vm1", "=/x", "vm1=", "vm1=,client", "vm1=/x,cleint", "vm1=/x,", "v m=/x", "v/m=/x", "ä=/x"] {
            assert!(parse_port(bad).is_err(), "{bad}");
        }
        assert!(parse_port(&format!("{}=/x", "n".repeat(63))).is_ok());
        assert!(parse_port(&format!("{}=/x", "n".repeat(64))).is_err());
        assert!(parse_port("vm1=/x,cleint").unwrap_err().contains("client"));
    }

    #[test]
    fn uplink_is_name_device_and_perhaps_how() {
        let uplink = |driver: Option<&str>, queues| {
            let driver = driver.map(Into::into);
            Ok(SavedUplink { name: "up0".into(), device: "eth0".into(), driver, queues, nice: 0 })
        };
        assert_eq!(parse_uplink("up0=eth0"), uplink(None, 1));
        assert_eq!(parse_uplink("up0=eth0,nice=-5").unwrap().nice, -5);
        assert_eq!(parse_uplink("up0=eth0,tap"), uplink(Some("tap"), 1));
        assert_eq!(parse_uplink("up0=eth0,af_packet,queues=4"), uplink(Some("af_packet"), 4));
        for bad in [
            "up0",
            "=eth0",
            "up0=",
            "up0=e/0",
            "up0=eth0,dpdk",
            "up0=eth0,queues=0",
            "up0=eth0,nice=20",
            "up0=eth0,queue=1",
            "u p=eth0",
        ] {
            assert!(parse_uplink(bad).is_err(), "{bad}");
        }
        assert!(parse_uplink("up0=eth0,dpdk").unwrap_err().contains("af_packet"));
    }
}
