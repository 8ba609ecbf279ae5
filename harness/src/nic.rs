//! One network card of a VM: what it is plugged into, and how its virtio device is dressed.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// What a card is plugged into.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A vhost-user socket on which somebody listens; QEMU connects, and again every second after a break.
    VhostUser(PathBuf),
    /// A vhost-user socket on which QEMU listens and waits for the switch before it boots.
    VhostUserServer(PathBuf),
    /// A TAP device that exists, without vhost-net; in the network namespace given.
    Tap {
        /// Its name.
        ifname: String,
        /// The network namespace it lives in.
        netns: String,
    },
}

/// A card with number `n` has the MAC address 52:54:00:00:00:n and, unless changed, 10.9.0.n/24 and fd09::n/64.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Where the packets go.
    pub backend: Backend,
    /// Its number, 1 to 254, which sets its addresses.
    pub number: u8,
    /// The MTU the guest sets, in bytes.
    pub mtu: u32,
    /// Queue pairs.
    pub queues: u16,
    /// The guest gives it addresses when it is brought up.
    pub addresses: bool,
    /// Further properties of QEMU's virtio-net-pci, such as `packed=on`.
    pub properties: Vec<String>,
}

impl Nic {
    /// A card on a vhost-user socket of the switch.
    pub fn vhost_user(socket: &Path, number: u8) -> Self {
        Self::new(Backend::VhostUser(socket.into()), number)
    }

    /// A card on a vhost-user socket of its own, to which the switch connects.
    pub fn vhost_user_server(socket: &Path, number: u8) -> Self {
        Self::new(Backend::VhostUserServer(socket.into()), number)
    }

    /// A card on any back-end: MTU 1500, one queue pair, QEMU's default features.
    pub fn new(backend: Backend, number: u8) -> Self {
        Self { backend, number, mtu: 1500, queues: 1, addresses: true, properties: Vec::new() }
    }

    /// With a property of virtio-net-pci, or several with commas between.
    pub fn with(mut self, properties: &str) -> Self {
        self.properties.extend(properties.split(',').filter(|p| !p.is_empty()).map(String::from));
        self
    }

    /// With this MTU in the guest.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Without addresses, until somebody gives it some.
    pub fn bare(mut self) -> Self {
        self.addresses = false;
        self
    }

    /// With this many queue pairs.
    pub fn queues(mut self, pairs: u16) -> Self {
        self.queues = pairs;
        self
    }

    /// Without segmentation offload either way and without merged buffers: the poorest card there is.
    pub fn plain(self) -> Self {
        self.without_tso().with("csum=off,guest_csum=off,mrg_rxbuf=off,host_ufo=off,guest_ufo=off")
    }

    /// Without segmentation offload either way; checksum offload stays.
    pub fn without_tso(self) -> Self {
        self.with("gso=off,host_tso4=off,host_tso6=off,host_ecn=off,guest_tso4=off,guest_tso6=off,guest_ecn=off")
            .with("host_ufo=off,guest_ufo=off")
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> String {
        format!("52:54:00:00:00:{:02x}", self.number)
    }

    /// Its IPv4 address.
    pub fn ip4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 0, self.number)
    }

    /// Its IPv6 address.
    pub fn ip6(&self) -> String {
        format!("fd09::{:x}", self.number)
    }

    /// QEMU's arguments for card `i` of a VM.
    pub(crate) fn qemu_args(&self, i: usize) -> Vec<String> {
        let mut args = Vec::new();
        let mut arg = |a: &str, b: String| args.extend([a.to_owned(), b]);
        let queues = if self.queues > 1 { format!(",queues={}", self.queues) } else { String::new() };
        match &self.backend {
            Backend::VhostUser(path) | Backend::VhostUserServer(path) => {
                let path = path.display();
                arg(
                    "-chardev",
                    match self.backend {
                        Backend::VhostUser(_) => format!("socket,id=c{i},path={path},reconnect=1"),
                        _ => format!("socket,id=c{i},path={path},server=on"),
                    },
                );
                arg("-netdev", format!("vhost-user,id=n{i},chardev=c{i}{queues}"));
            }
            Backend::Tap { ifname, .. } => {
                arg("-netdev", format!("tap,id=n{i},ifname={ifname},script=no,downscript=no,vhost=off{queues}"));
            }
        }
        // Without KVM, QEMU 7.2 crashes with vhost-user and MSI-X; vectors=0 is the legacy interrupt.
        let mut device = format!("virtio-net-pci,netdev=n{i},mac={},vectors=0", self.mac());
        if self.queues > 1 {
            device.push_str(",mq=on");
        }
        for p in &self.properties {
            device.push(',');
            device.push_str(p);
        }
        arg("-device", device);
        args
    }

    /// The guest's commands that bring card `i` up.
    pub(crate) fn bring_up(&self, i: usize) -> String {
        let (mtu, mac, ip4, ip6) = (self.mtu, self.mac(), self.ip4(), self.ip6());
        let up = format!(
            "set -e; e=eth{i}; [ $(cat /sys/class/net/$e/address) = {mac} ]; ip link set $e mtu {mtu}; ip link set $e up"
        );
        if !self.addresses {
            return up;
        }
        format!(
            "{up}; \
             ip addr add {ip4}/24 broadcast + dev $e; echo 0 >/proc/sys/net/ipv6/conf/$e/accept_dad; ip addr add {ip6}/64 dev $e; \
             ip route add default dev $e metric 10{i}"
        )
    }
}
