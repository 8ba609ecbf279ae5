//! Arguments of `lasthop run`.

use std::path::PathBuf;

/// Longest port name, in characters.
const MAX_NAME: usize = 63;

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
    /// Microseconds a worker looks for more packets before it sleeps
    #[arg(long, value_name = "US", default_value_t = 5)]
    pub spin_us: u32,
    /// Do not load the eBPF program that watches which VMs run and which cores are idle
    #[arg(long)]
    pub no_bpf: bool,
    /// Directory of lasthop-switch and lasthop-control
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
}
