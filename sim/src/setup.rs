//! What is simulated: a host, who lives on it, who carries their packets, and what they do.

use crate::host::Host;
use crate::inputs::Costs;

/// Who carries packets between the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The papers' prototype: switching and copying inside the hypervisor, on the time of the guest that enters it.
    HyperSwitch,
    /// lasthop on Linux: a thread for each port at normal priority, helpers at idle priority.
    Lasthop,
    /// KVM's vhost-net: a kernel thread for each guest; one copy into the host and one out of it.
    Vhost,
    /// Xen's netback: a few threads in a driver domain, guests bound to them; two copies and grants.
    Netback,
}

/// The switch's mechanisms, each with a switch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanisms {
    /// Guests kick for batches.
    pub transmit_batching: bool,
    /// Guests are interrupted for batches.
    pub receive_batching: bool,
    /// It is known which guest runs and which core is idle.
    pub vm_state: bool,
    /// Packets are copied before their receiver is told. Off (lasthop alone): it is told that there are some, and has its port's
    /// thread copy them; then it is told again. So nobody copies for it, helpers neither.
    pub preemptive_copy: bool,
    /// Idle cores take work.
    pub helpers: bool,
    /// They wait a little for more before they sleep.
    pub hysteresis: bool,
    /// … longer while packets come often. Off on the papers' machine, where it is 5 µs.
    pub adaptive: bool,
    /// Caches and siblings count when one is chosen.
    pub cache: bool,
    /// A core that was taken away is left alone for a while.
    pub back_off: bool,
    /// What a guest has left undone when it blocks is done then.
    pub before_blocking: bool,
    /// A helper stops when somebody begins to use its execution units from another core, too. The policy does not have
    /// this; the thesis can be read so.
    pub give_way: bool,
    /// The transmit timer is started as figure 4.3 of the thesis draws it: with the first packet after silence, and however often a packet was alone.
    pub drawn_timer: bool,
    /// A helper that is awake looks at all rings, as those of the papers do. The policy's looks at those that it was told of, and at both ends of what it has
    /// copied.
    pub watch_all: bool,
    /// A thread copies a whole burst of the largest packets (320 KiB) before it asks for help, and not 64 KiB.
    pub whole_burst: bool,
}

impl Mechanisms {
    /// Everything that the policy has.
    pub const ALL: Self = Self {
        transmit_batching: true,
        receive_batching: true,
        vm_state: true,
        preemptive_copy: true,
        helpers: true,
        hysteresis: true,
        adaptive: true,
        cache: true,
        back_off: true,
        before_blocking: true,
        give_way: false,
        drawn_timer: false,
        watch_all: false,
        whole_burst: false,
    };
}

/// A connection: so many packets may be on their way unacknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Packets.
    pub window: u32,
}

/// What the guests do.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// TCP as fast as the window lets it, in packets of `bytes`; each is acknowledged.
    Streams {
        /// Connections.
        flows: Vec<Flow>,
        /// Length of a packet.
        bytes: u32,
    },
    /// One small packet there, one back, then the next.
    Transactions {
        /// Connections; their window is 1.
        flows: Vec<Flow>,
    },
    /// Bursts with heavy tails, and other work.
    Bursts(Bursts),
}

/// On and off: each guest sends bursts to one of its peers, and computes now and then.
#[derive(Clone, Copy, Debug)]
pub struct Bursts {
    /// Packets of a burst on average; Pareto.
    pub packets: f64,
    /// From one to the next within a burst, on average; exponential.
    pub gap_ns: f64,
    /// From the end of a burst to the next, on average; Pareto.
    pub silence_ns: f64,
    /// Peers of each guest.
    pub peers: usize,
    /// Share of its time for which a guest would compute if it had a core for itself.
    pub compute: f64,
    /// Computing at a stretch, on average; Pareto.
    pub compute_ns: f64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub host: Host,
    /// What things cost on it.
    pub costs: Costs,
    /// Who carries.
    pub carrier: Carrier,
    /// What of the policy is switched on.
    pub mechanisms: Mechanisms,
    /// Where each guest's virtual CPU is pinned; `None`: the scheduler decides.
    pub guests: Vec<Option<usize>>,
    /// The same of vhost-net's or netback's threads; guest n is served by thread n modulo their number.
    pub services: Vec<Option<usize>>,
    /// This core's helper never sleeps and takes all work that is handed over.
    pub dedicated: Option<usize>,
    /// What the guests do.
    pub traffic: Traffic,
    /// Guests do not work like clocks: by this part more or less, so that they do not fall into step with each other.
    pub variation: f64,
    /// Not measured.
    pub warm_up_ns: u64,
    /// Measured.
    pub measure_ns: u64,
    /// Chance.
    pub seed: u64,
}
