//! Linux VMs on lasthop, with every feature QEMU lets a card have.

use lasthop_tests_vm::checks::{self, Depth};
use lasthop_tests_vm::{Lasthop, Nic, Port, Vm, VmConfig, scratch};

/// Two VMs on a lasthop; ports a and b listen in `dir`.
struct Pair {
    a: Vm,
    b: Vm,
    lasthop: Lasthop,
    _dir: tempfile::TempDir,
}

impl Pair {
    /// Cards as `dress` makes them, from the plain ones of guest 1 and 2.
    fn start(dress: impl Fn(Nic) -> Nic) -> Self {
        Self::boot(|name, nic| VmConfig::new(name, [dress(nic)]))
    }

    fn boot(config: impl Fn(&str, Nic) -> VmConfig) -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let vm = |i: usize| config(&ports[i].name, Nic::vhost_user(&ports[i].socket, i as u8 + 1));
        let [a, b] = Vm::boot_all([vm(0), vm(1)]);
        for vm in [&a, &b] {
            vm.serve();
        }
        Self { a, b, lasthop, _dir: dir }
    }
}

#[test]
fn all_offloads() {
    let pair = Pair::start(|nic| nic);
    checks::all(&pair.a, &pair.b, Depth::Thorough);
}
