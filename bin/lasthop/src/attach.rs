//! `lasthop attach`: the lines that plug a virtual machine into a port.

use crate::SharedArgs;
use crate::client::CliError;
use crate::list::all_ports;
use crate::settings::value_of;
use crate::size::Size;
use lasthop_api::Port;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// Name of the port; several are as many cards of one machine
    #[arg(required = true, value_name = "PORT", add = crate::completions::guests())]
    ports: Vec<String>,
    /// Print only the lines for this one
    #[arg(long)]
    vmm: Option<Vmm>,
    /// Queue pairs each card shall have
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=lasthop_types::MAX_QUEUE_PAIRS as i64))]
    queues: u16,
    /// The machine's memory, which the switch maps: a number with K, M, G or T; without, of MiB
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: Size,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Vmm {
    Qemu,
    CloudHypervisor,
    Libvirt,
}

pub fn attach(args: &AttachArgs) -> Result<String, CliError> {
    let shared = SharedArgs { run_dir: args.run_dir.clone(), json: false };
    let there = all_ports(&mut shared.instance()?)?;
    let mut ports = Vec::new();
    for name in &args.ports {
        let Some(port) = there.iter().find(|p| p.name == *name) else {
            let error = CliError::new(format!(
                "there is no port named {name:?}; `lasthop port list` shows those there are, \
                 `lasthop port add` makes one"
            ));
            return Err(crate::device::ports::hint(error, &args.run_dir, name));
        };
        check(port)?;
        if ports.contains(&port) {
            return Err(CliError::usage(format!("{name} is named twice; a port takes one card")));
        }
        ports.push(port);
    }
    Ok(match args.vmm {
        Some(vmm) => lines(vmm, &ports, args),
        None => {
            let all = [(Vmm::Qemu, "QEMU"), (Vmm::CloudHypervisor, "Cloud Hypervisor"), (Vmm::Libvirt, "libvirt")];
            let parts = all.map(|(vmm, name)| format!("# {name}\n{}", lines(vmm, &ports, args)));
            parts.join("\n")
        }
    })
}

/// An address for the machine: the first that the port lets through, if it is told which. Else one made of its name: the same for the same port name, and locally administered as QEMU's are. (Without one,
/// every QEMU machine takes the same address.)
fn mac(port: &Port) -> String {
    if let Some(first) = value_of(&port.settings, "mac").and_then(|told| told.split(',').next()) {
        return first.to_owned();
    }
    // FNV-1a.
    let hash = port.name.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let [_, a, b, c] = hash.to_be_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

/// The machine's memory, once, and a card for each port.
fn lines(vmm: Vmm, ports: &[&Port], args: &AttachArgs) -> String {
    // A bare number is QEMU's MiB after -m, and bytes elsewhere: it gets its M.
    let memory = args.memory.or_mib();
    let cards: Vec<String> = ports.iter().map(|port| card(vmm, port, args.queues)).collect();
    // Named after the port: the lines of two calls can be put together, and then the last -machine holds.
    let id = ports.first().map_or("lasthop", |port| &port.name);
    match vmm {
        Vmm::Qemu => format!(
            "-m {memory}\n\
             -object memory-backend-memfd,id=mem-{id},size={memory},share=on\n\
             -machine memory-backend=mem-{id}\n\
             {}",
            cards.concat()
        ),
        Vmm::CloudHypervisor => format!("--memory size={memory},shared=on\n--net {}\n", cards.join(" \\\n      ")),
        Vmm::Libvirt => format!(
            "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n{}",
            cards.concat()
        ),
    }
}

/// Only a socket is something to plug a machine into.
fn check(port: &Port) -> Result<(), CliError> {
    let name = &port.name;
    match &port.device {
        _ if port.uplink => {
            Err(CliError::new(format!("{name} is an uplink, not a machine's port; `lasthop uplink list` shows it")))
        }
        Some(device) => Err(CliError::new(format!(
            "{name} is the device {device}, not a machine's socket; `lasthop port add NAME PATH` makes one"
        ))),
        None => Ok(()),
    }
}

fn card(vmm: Vmm, port: &Port, n: u16) -> String {
    let (name, path) = (&port.name, &port.path);
    let mac = mac(port);
    match vmm {
        Vmm::Qemu => {
            // QEMU's option parser takes a double comma for a comma.
            let path = path.replace(',', ",,");
            let role = if port.client { "server=on" } else { "reconnect=1" };
            let multiqueue = if n > 1 { format!(",mq=on,vectors={}", 2 * n + 2) } else { String::new() };
            format!(
                "-chardev socket,id=chr-{name},path={path},{role}\n\
                 -netdev vhost-user,id=net-{name},chardev=chr-{name},queues={n}\n\
                 -device virtio-net-pci,netdev=net-{name},mac={mac}{multiqueue}\n"
            )
        }
        Vmm::CloudHypervisor => {
            let role = if port.client { ",vhost_mode=server" } else { "" };
            format!("vhost_user=true,socket={path},num_queues={},mac={mac}{role}", 2 * n)
        }
        Vmm::Libvirt => {
            let path = path.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
            let source = if port.client {
                format!("  <source type='unix' path='{path}' mode='server'/>\n")
            } else {
                format!(
                    "  <source type='unix' path='{path}' mode='client'>\n    \
                     <reconnect enabled='yes' timeout='1'/>\n  </source>\n"
                )
            };
            let driver = if n > 1 { format!("  <driver queues='{n}'/>\n") } else { String::new() };
            format!(
                "<interface type='vhostuser'>\n  <mac address='{mac}'/>\n{source}  <model type='virtio'/>\n\
                 {driver}</interface>\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::Field;

    fn args(queues: u16) -> AttachArgs {
        AttachArgs {
            ports: Vec::new(),
            vmm: None,
            queues,
            memory: "1G".parse().unwrap(),
            run_dir: "/run/lasthop".into(),
        }
    }

    fn port(client: bool) -> Port {
        Port { name: "vm1".into(), path: "/run/a,b.sock".into(), client, ..Port::default() }
    }

    #[test]
    fn the_side_that_listens_is_the_other_one() {
        let qemu = |client| lines(Vmm::Qemu, &[&port(client)], &args(1));
        assert!(qemu(false).contains("path=/run/a,,b.sock,reconnect=1\n"));
        assert!(qemu(true).contains("path=/run/a,,b.sock,server=on\n"));
        let libvirt = |client| lines(Vmm::Libvirt, &[&port(client)], &args(1));
        assert!(libvirt(false).contains("mode='client'>") && libvirt(true).contains("mode='server'/>"));
        assert!(lines(Vmm::CloudHypervisor, &[&port(true)], &args(1)).contains("vhost_mode=server"));
    }

    #[test]
    fn only_a_socket_has_lines() {
        assert!(check(&port(false)).is_ok());
        let device = Port { name: "c1".into(), device: Some("v1".into()), ..Port::default() };
        let error = check(&device).unwrap_err().to_string();
        assert!(error.starts_with("c1 is the device v1, not a machine's socket; "), "{error}");
        let uplink = Port { uplink: true, ..device };
        assert!(check(&uplink).unwrap_err().to_string().starts_with("c1 is an uplink"));
    }

    #[test]
    fn queues_are_pairs() {
        assert!(lines(Vmm::Qemu, &[&port(false)], &args(4)).contains("queues=4\n"));
        assert!(lines(Vmm::Qemu, &[&port(false)], &args(4)).contains("mq=on,vectors=10\n"));
        assert!(lines(Vmm::CloudHypervisor, &[&port(false)], &args(4)).contains("num_queues=8"));
        assert!(lines(Vmm::Libvirt, &[&port(false)], &args(4)).contains("queues='4'"));
    }

    #[test]
    fn two_cards_of_one_machine() {
        let (vm1, vm2) = (port(false), Port { name: "vm2".into(), ..port(false) });
        let both = lines(Vmm::Qemu, &[&vm1, &vm2], &args(1));
        assert_eq!(both.matches("-object").count(), 1, "{both}");
        assert_eq!(both.matches("-device").count(), 2, "{both}");
        assert_eq!(lines(Vmm::Libvirt, &[&vm1, &vm2], &args(1)).matches("<memoryBacking>").count(), 1);
        assert_eq!(lines(Vmm::CloudHypervisor, &[&vm1, &vm2], &args(1)).matches("--net").count(), 1);
        // Two calls' lines together: no name is there twice.
        let apart = lines(Vmm::Qemu, &[&vm1], &args(1)) + &lines(Vmm::Qemu, &[&vm2], &args(1));
        let mut ids: Vec<_> = apart.split(',').filter(|part| part.starts_with("id=")).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((all, ids.len()), (6, 6), "{apart}");
    }

    /// A port that is told whose addresses it may use drops a card's frames with another one.
    #[test]
    fn a_port_that_lets_one_address_through_gets_it() {
        let mac = Field { name: "mac".into(), value: "52:54:00:00:00:07,52:54:00:00:00:08".into() };
        let told = Port { settings: vec![mac], ..port(false) };
        for vmm in [Vmm::Qemu, Vmm::CloudHypervisor, Vmm::Libvirt] {
            let text = lines(vmm, &[&told], &args(1));
            assert!(text.contains("52:54:00:00:00:07") && !text.contains("00:08"), "{text}");
        }
    }

    #[test]
    fn machines_get_different_addresses() {
        let named = |name: &str| Port { name: name.into(), ..port(false) };
        assert_eq!(mac(&named("vm1")), mac(&named("vm1")));
        assert_ne!(mac(&named("vm1")), mac(&named("vm2")));
    }
}
