//! A representor: our end of an interface whose other end a guest has, such as a network card's function, or a veth pair. Established flows are carried by
//! its card, or by the kernel (`lasthop-flower`); what none of their rules takes comes here.
//!
//! A packet socket would not do: the kernel gives it frames before it looks at rules, and so those as well that rules take. So the last rule at the
//! interface sends all that is left to a TAP device of ours, and one at that device sends all that we write to the interface. The TAP device goes with the
//! last descriptor of it.

use super::{Device, Kept, MemoryConfig, OpenError, Queue, Tap, Wanted, about, denied, whole_packets};
use crate::room::{Interface, Tun};
use lasthop_tc::Netlink;
use lasthop_uplink_ipc::UplinkDriver;
use rustix::io::Errno;

/// What the kernel puts a number into.
const NAME: &str = "lhtc%d";

/// Opens a representor, or goes on with the TAP device that is kept.
pub(super) fn open(wanted: &Wanted, kept: Option<Kept>) -> Result<Device, OpenError> {
    let name = &wanted.device;
    let is_new = kept.is_none();
    let mut about = about(wanted, UplinkDriver::Tc, "", false)?;
    let queues = match kept {
        Some(kept) => kept.descriptors.into_iter().map(Tun::kept).collect(),
        None => attach(wanted.queues)?,
    };
    let mut uso = true;
    for queue in &queues {
        uso &= queue.set_offloads().map_err(|e| OpenError(denied(name, e)))?;
    }
    let tap = queues.first().map(Tun::name).transpose().map_err(|e| OpenError(denied(name, e)))?.unwrap_or_default();
    if is_new {
        join(name, &tap, about.mtu)?;
    }
    about.mode = tap;
    let queues = queues.into_iter().map(|tun| Queue::Tap(Tap::passing(tun))).collect();
    let (features, memory) = (whole_packets(uso), MemoryConfig::whole_packets(wanted.queues));
    Ok(Device { queues, about, features, memory, kept: None, steering: None })
}

/// Makes a TAP device of so many queues.
fn attach(queues: u16) -> Result<Vec<Tun>, OpenError> {
    let failed = |e: Errno| match e {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            OpenError(format!("/dev/net/tun: {e}; load the kernel's module tun"))
        }
        e => OpenError(denied("a TAP device", e)),
    };
    let first = Tun::attach(NAME, queues > 1).map_err(failed)?;
    let name = first.name().map_err(failed)?;
    let others = (1..queues).map(|_| Tun::attach(&name, true).map_err(failed));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// What one receives the other sends.
fn join(name: &str, tap: &str, mtu: u32) -> Result<(), OpenError> {
    let failed = |e: Errno| OpenError(denied(name, e));
    let (representor, device) = (Interface::named(name).map_err(failed)?, Interface::named(tap).map_err(failed)?);
    // The host does not speak there. Where the kernel has no IPv6 it would not.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{tap}/disable_ipv6"), "1");
    device.set_mtu(mtu).map_err(failed)?;
    device.bring_up().map_err(failed)?;
    let index = |interface: &Interface| interface.index().map(i32::unsigned_abs).map_err(failed);
    let (representor, device) = (index(&representor)?, index(&device)?);
    let mut netlink = Netlink::open().map_err(failed)?;
    // Rules of flows that a run has left whose processes were all killed pass every list by; whoever gives flows of today gives them anew.
    netlink.clear_flows(representor).map_err(failed)?;
    for [from, to] in [[representor, device], [device, representor]] {
        let joined = netlink.make_place(from).and_then(|()| netlink.put_rest(from, to));
        joined.map_err(|e| OpenError(lacks(name, e)))?;
    }
    Ok(())
}

/// This interface is to be used in another way: rules that a run with driver=tc has left there, whose processes were all killed, would go on.
pub(super) fn leave(name: &str) -> Result<(), OpenError> {
    let index = Interface::named(name).and_then(|interface| interface.index()).map(i32::unsigned_abs);
    match index.and_then(|index| Netlink::open()?.leave(index)) {
        // Who may not remove rules is not who has made them, and a kernel without rules has none.
        Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT) => Ok(()),
        Err(e) => Err(OpenError(format!(
            "{name}: rules of an earlier run cannot be removed: {e}; `tc filter del dev {name} ingress` removes them"
        ))),
    }
}

/// The kernel does not take the rules that driver=tc needs.
fn lacks(name: &str, e: Errno) -> String {
    match e {
        Errno::NOENT | Errno::OPNOTSUPP => format!(
            "{name}: this kernel has no classifier \"flower\" with the action \"mirred\" (CONFIG_NET_CLS_FLOWER, CONFIG_NET_ACT_MIRRED, \
             CONFIG_NET_SCH_INGRESS), which driver=tc needs ({e}); load its modules (`modprobe -a sch_ingress cls_flower act_mirred`), or use \
             driver=af_packet, without flows in the kernel or a card"
        ),
        e => denied(name, e),
    }
}
