//! `lasthop attach`: the lines that plug a virtual machine into a port.

use crate::SharedArgs;
use crate::client::CliError;
use crate::list::all_ports;
use lasthop_api::Port;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// Name of the port
    port: String,
    /// Print only the lines for this one
    #[arg(long)]
    vmm: Option<Vmm>,
    /// Queue pairs the machine shall have
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=lasthop_types::MAX_QUEUE_PAIRS as i64))]
    queues: u16,
    /// The machine's memory, which the switch maps; as -m says for QEMU
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: String,
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
    let ports = all_ports(&mut shared.instance()?)?;
    let Some(port) = ports.iter().find(|p| p.name == args.port) else {
        return Err(CliError::new(format!(
            "there is no port named {:?}; `lasthop port list` shows those there are, \
             `lasthop port add` makes one",
            args.port
        )));
    };
    if port.uplink {
        let name = &port.name;
        return Err(CliError::new(format!(
            "{name} is an uplink, not a machine's port; `lasthop uplink list` shows it"
        )));
    }
    Ok(match args.vmm {
        Some(vmm) => lines(vmm, port, args),
        None => {
            let all = [(Vmm::Qemu, "QEMU"), (Vmm::CloudHypervisor, "Cloud Hypervisor"), (Vmm::Libvirt, "libvirt")];
            let parts = all.map(|(vmm, name)| format!("# {name}\n{}", lines(vmm, port, args)));
            parts.join("\n")
        }
    })
}

/// An address for the machine: the same for the same port name, and locally administered as QEMU's are. (Without one,
/// every QEMU machine takes the same address.)
fn mac(name: &str) -> String {
    // FNV-1a.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let [_, a, b, c] = hash.to_be_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

fn lines(vmm: Vmm, port: &Port, args: &AttachArgs) -> String {
    let (name, path, n) = (&port.name, &port.path, args.queues);
    let (mac, memory) = (mac(name), &args.memory);
    match vmm {
        Vmm::Qemu => {
            // QEMU's option parser takes a double comma for a comma.
            let path = path.replace(',', ",,");
            let role = if port.client { "server=on" } else { "reconnect=1" };
            let multiqueue = if n > 1 { format!(",mq=on,vectors={}", 2 * n + 2) } else { String::new() };
            format!(
                "-m {memory}\n\
                 -object memory-backend-memfd,id=mem-lasthop,size={memory},share=on\n\
                 -machine memory-backend=mem-lasthop\n\
                 -chardev socket,id=chr-{name},path={path},{role}\n\
                 -netdev vhost-user,id=net-{name},chardev=chr-{name},queues={n}\n\
                 -device virtio-net-pci,netdev=net-{name},mac={mac}{multiqueue}\n"
            )
        }
        Vmm::CloudHypervisor => {
            let role = if port.client { ",vhost_mode=server" } else { "" };
            format!(
                "--memory size={memory},shared=on\n\
                 --net vhost_user=true,socket={path},num_queues={},mac={mac}{role}\n",
                2 * n
            )
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
                "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n\
                 <interface type='vhostuser'>\n  <mac address='{mac}'/>\n{source}  <model type='virtio'/>\n\
                 {driver}</interface>\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(queues: u16) -> AttachArgs {
        AttachArgs { port: "vm1".into(), vmm: None, queues, memory: "1G".into(), run_dir: "/run/lasthop".into() }
    }

    fn port(client: bool) -> Port {
        Port { name: "vm1".into(), path: "/run/a,b.sock".into(), client, ..Port::default() }
    }

    #[test]
    fn the_side_that_listens_is_the_other_one() {
        let qemu = |client| lines(Vmm::Qemu, &port(client), &args(1));
        assert!(qemu(false).contains("path=/run/a,,b.sock,reconnect=1\n"));
        assert!(qemu(true).contains("path=/run/a,,b.sock,server=on\n"));
        let libvirt = |client| lines(Vmm::Libvirt, &port(client), &args(1));
        assert!(libvirt(false).contains("mode='client'>") && libvirt(true).contains("mode='server'/>"));
        assert!(lines(Vmm::CloudHypervisor, &port(true), &args(1)).contains("vhost_mode=server"));
    }

    #[test]
    fn queues_are_pairs() {
        assert!(lines(Vmm::Qemu, &port(false), &args(4)).contains("queues=4\n"));
        assert!(lines(Vmm::Qemu, &port(false), &args(4)).contains("mq=on,vectors=10\n"));
        assert!(lines(Vmm::CloudHypervisor, &port(false), &args(4)).contains("num_queues=8"));
        assert!(lines(Vmm::Libvirt, &port(false), &args(4)).contains("queues='4'"));
    }

    #[test]
    fn machines_get_different_addresses() {
        assert_eq!(mac("vm1"), mac("vm1"));
        assert_ne!(mac("vm1"), mac("vm2"));
    }
}
