//! DPDK guests: one testpmd with two virtio-user ports, each of which sends the frames of a capture file and writes what
//! it receives to another.

use crate::stop::Outcome;
use crate::testpmd::Testpmd;
use crate::{pcap, scratch};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a round waits for frames that do not come.
const PATIENCE: Duration = Duration::from_secs(4);

/// How both virtio-user ports are set up.
#[derive(Clone, Debug)]
pub struct VirtioUser {
    /// Queue pairs.
    pub queues: usize,
    /// Buffers longer than one descriptor's (VIRTIO_NET_F_MRG_RXBUF).
    pub mergeable: bool,
    /// Further arguments of the device, such as `packed_vq=1,in_order=1`.
    pub arguments: String,
    /// testpmd listens and the switch connects; or the other way round.
    pub server: bool,
}

/// What came out on one side: for every queue, the frames in the order they came.
pub type Received = Vec<Vec<Vec<u8>>>;

/// What a play came to.
#[derive(Clone, Debug)]
pub struct Played {
    /// Per round what guest 0 and guest 1 received.
    pub rounds: Vec<[Received; 2]>,
    /// Which of its receive functions DPDK took, in its words, such as `packed ring mergeable buffer`.
    pub path: String,
}

/// Two DPDK guests in one process.
pub struct Loopback {
    /// How their devices are set up.
    pub devices: VirtioUser,
    /// Sockets of the first and the second guest.
    pub sockets: [PathBuf; 2],
}

/// Descriptors in a ring; no test sends more at once, so a guest that was not scheduled loses nothing.
pub const RING: usize = 1024;

impl Loopback {
    /// Guests on `dir/a.sock` and `dir/b.sock`.
    pub fn new(dir: &Path, devices: VirtioUser) -> Self {
        Self { devices, sockets: [dir.join("a.sock"), dir.join("b.sock")] }
    }

    /// Plays `rounds` one after the other: in each, guest 0 sends the first list and guest 1 the second, one list of frames
    /// per queue. A round ends when all arrived, or [`PATIENCE`] later. Returns what they
    /// received, or why testpmd could not start its ports.
    pub fn play(&self, rounds: &[[Received; 2]]) -> Result<Played, String> {
        let dir = scratch();
        let file = |round: usize, guest: usize, way: &str, queue: usize| {
            dir.path().join(format!("{way}-{round}-{guest}-{queue}.pcap"))
        };
        let queues = self.devices.queues;
        let mut vdevs = Vec::new();
        for (guest, socket) in self.sockets.iter().enumerate() {
            let VirtioUser { mergeable, arguments, server, .. } = &self.devices;
            let (path, server, mergeable) = (socket.display(), u8::from(*server), u8::from(*mergeable));
            let comma = if arguments.is_empty() { "" } else { "," };
            vdevs.push(format!(
                "net_virtio_user{guest},path={path},server={server},queues={queues},queue_size={RING},mrg_rxbuf={mergeable}{comma}{arguments}"
            ));
        }
        for (round, sides) in rounds.iter().enumerate() {
            for (guest, lists) in sides.iter().enumerate() {
                let mut vdev = format!("net_pcap{}", round * 2 + guest);
                for (queue, frames) in lists.iter().enumerate() {
                    pcap::write(&file(round, guest, "in", queue), frames);
                    vdev += &format!(",rx_pcap={}", file(round, guest, "in", queue).display());
                    vdev += &format!(",tx_pcap={}", file(round, guest, "out", queue).display());
                }
                vdevs.push(vdev);
            }
        }
        // Ports 0 and 1 are the guests, 2 + 2r and 3 + 2r the files of round r; testpmd forwards within pairs of the list.
        let mut testpmd = must(self.devices.start(&vdevs));
        if self.devices.mergeable {
            must(testpmd.say("port config 0 rx_offload scatter on"));
            must(testpmd.say("port config 1 rx_offload scatter on"));
        }
        let started = must(testpmd.say("port start all"));
        let paths = started.rsplit("virtio: using ").filter_map(|s| s.split_once(" Rx path"));
        let path = paths.map(|(p, _)| p).find(|p| !p.contains('\n')).unwrap_or_default().to_owned();
        if started.contains("Fail") || started.contains("rror") {
            return Err(format!("testpmd: {started}"));
        }
        must(testpmd.say("set fwd io retry"));
        must(testpmd.say("set burst tx delay 50 retry 100000"));
        let mut expected = [0, 0];
        for (round, sides) in rounds.iter().enumerate() {
            for (to, from) in [(0, 1), (1, 0)] {
                expected[to] += sides[from].iter().map(Vec::len).sum::<usize>() as u64;
            }
            must(testpmd.say(&format!("set portlist 0,{},1,{}", 2 + 2 * round, 3 + 2 * round)));
            must(testpmd.say("start"));
            let end = Instant::now() + PATIENCE;
            while [0, 1].iter().any(|g| must(testpmd.received(*g)) < expected[*g]) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            must(testpmd.say("stop"));
        }
        must(testpmd.quit());
        let received = |r| [0, 1].map(|g| (0..queues).map(|q| pcap::read(&file(r, g, "out", q))).collect());
        Ok(Played { rounds: (0..rounds.len()).map(received).collect(), path })
    }
}

impl VirtioUser {
    /// A testpmd with these virtio-user ports and files, which starts no port by itself.
    fn start(&self, vdevs: &[String]) -> Outcome<Testpmd> {
        let queues = self.queues;
        let mut eal = vec!["--log-level=pmd.net.virtio.init:info"];
        if self.arguments.contains("vectorized=1") {
            eal.push("--force-max-simd-bitwidth=512");
        }
        // Without merged buffers a 9000-byte frame needs one buffer that long.
        let mbuf = if self.mergeable { 2176 } else { 9728 };
        let options = [
            format!("--rxq={queues}"),
            format!("--txq={queues}"),
            format!("--mbuf-size={mbuf}"),
            format!("--total-num-mbufs={}", 6000 * queues.min(2)),
        ];
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        options.extend(["--burst=32", "--max-pkt-len=9018", "--disable-device-start", "--no-flush-rx"]);
        Testpmd::start("0@(0,1),1@(0,1)", 192, vdevs, &eal, &options)
    }
}

/// A test has nobody to hand a failure to.
fn must<T>(outcome: Outcome<T>) -> T {
    outcome.unwrap_or_else(|e| panic!("{e}"))
}
