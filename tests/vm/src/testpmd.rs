//! DPDK guests: one testpmd with two virtio-user ports, each of which sends the frames of a capture file and writes what
//! it receives to another.

use crate::{last_lines, pcap, scratch, spawn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

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
    /// per queue, and after each `settle` passes. Returns per round what guest 0 and guest 1 received.
    pub fn play(&self, rounds: &[[Received; 2]], settle: Duration) -> Vec<[Received; 2]> {
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
        let mut script = String::from("set fwd io retry\nset burst tx delay 50 retry 100000\n");
        for round in 0..rounds.len() {
            script += &format!("set portlist 0,{},1,{}\nstart\n", 2 + 2 * round, 3 + 2 * round);
            script += "#settle\nstop\n";
        }
        script += "show port stats all\nquit\n";
        self.testpmd(&vdevs, &script, settle);
        (0..rounds.len())
            .map(|r| [0, 1].map(|g| (0..queues).map(|q| pcap::read(&file(r, g, "out", q))).collect()))
            .collect()
    }

    fn testpmd(&self, vdevs: &[String], script: &str, settle: Duration) {
        let dir = scratch();
        let log = dir.path().join("testpmd.log");
        let mut child = spawn::spawn("KILL", "dpdk-testpmd", |c| {
            let out = std::fs::File::create(&log).expect("a log in the scratch directory");
            c.args(["--lcores", "0@(0,1),1@(0,1)", "--in-memory", "--single-file-segments", "--no-pci", "-m", "192"]);
            c.arg("--file-prefix").arg(dir.path().file_name().expect("the directory has a name"));
            for vdev in vdevs {
                c.args(["--vdev", vdev]);
            }
            let queues = self.devices.queues;
            // Without merged buffers a 9000-byte frame needs one buffer that long.
            let mbuf = if self.devices.mergeable { 2176 } else { 9728 };
            c.args(["--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024", "--burst=32", "--max-pkt-len=9018"]);
            c.args([format!("--rxq={queues}"), format!("--txq={queues}"), format!("--mbuf-size={mbuf}")]);
            c.args([format!("--total-num-mbufs={}", 6000 * queues.min(2))]);
            c.stdin(Stdio::piped()).stdout(out.try_clone().expect("a second handle")).stderr(out);
        });
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let text = || String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
        crate::wait_for("testpmd's prompt", Duration::from_secs(20), || {
            let text = text();
            if let Ok(Some(status)) = child.try_wait() {
                panic!("testpmd ended with {status}:\n{}", last_lines(&text, 15));
            }
            text.contains("testpmd>")
        });
        for line in script.lines() {
            if line == "#settle" {
                std::thread::sleep(settle);
            } else if writeln!(stdin, "{line}").is_err() {
                break;
            }
        }
        drop(stdin);
        crate::wait_for("testpmd's end", Duration::from_secs(20), || child.try_wait().is_ok_and(|s| s.is_some()));
        if std::env::var_os("LASTHOP_TESTPMD_LOG").is_some() {
            eprintln!("{}", text());
        }
    }
}
