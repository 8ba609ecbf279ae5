//! DPDK guests: one testpmd with two virtio-user ports, each of which sends the frames of a capture file and writes what
//! it receives to another.

use crate::{last_lines, pcap, scratch, spawn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

const PROMPT: &str = "testpmd> ";

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
        let mut testpmd = Testpmd::start(&self.devices, &vdevs);
        if self.devices.mergeable {
            testpmd.say("port config 0 rx_offload scatter on");
            testpmd.say("port config 1 rx_offload scatter on");
        }
        let started = testpmd.say("port start all");
        let paths = started.rsplit("virtio: using ").filter_map(|s| s.split_once(" Rx path"));
        let path = paths.map(|(p, _)| p).find(|p| !p.contains('\n')).unwrap_or_default().to_owned();
        if started.contains("Fail") || started.contains("rror") {
            return Err(format!("testpmd: {started}"));
        }
        testpmd.say("set fwd io retry");
        testpmd.say("set burst tx delay 50 retry 100000");
        let mut expected = [0, 0];
        for (round, sides) in rounds.iter().enumerate() {
            for (to, from) in [(0, 1), (1, 0)] {
                expected[to] += sides[from].iter().map(Vec::len).sum::<usize>() as u64;
            }
            testpmd.say(&format!("set portlist 0,{},1,{}", 2 + 2 * round, 3 + 2 * round));
            testpmd.say("start");
            let end = Instant::now() + PATIENCE;
            while [0, 1].iter().any(|g| testpmd.received(*g) < expected[*g]) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            testpmd.say("stop");
        }
        testpmd.quit();
        let received = |r| [0, 1].map(|g| (0..queues).map(|q| pcap::read(&file(r, g, "out", q))).collect());
        Ok(Played { rounds: (0..rounds.len()).map(received).collect(), path })
    }
}

/// A testpmd at its prompt.
struct Testpmd {
    child: Child,
    stdin: Option<ChildStdin>,
    log: PathBuf,
    /// How much of the log has been read.
    read: usize,
    _dir: tempfile::TempDir,
}

impl Testpmd {
    fn start(devices: &VirtioUser, vdevs: &[String]) -> Self {
        let dir = scratch();
        let log = dir.path().join("testpmd.log");
        // Unbuffered, so that what follows a prompt belongs to the next command.
        let mut child = spawn::spawn("KILL", "stdbuf", |c| {
            let out = std::fs::File::create(&log).expect("a log in the scratch directory");
            c.args(["-o0", "dpdk-testpmd", "--lcores", "0@(0,1),1@(0,1)", "--in-memory", "--single-file-segments"]);
            c.args(["--log-level=pmd.net.virtio.init:info", "--no-pci", "-m", "192", "--file-prefix"])
                .arg(dir.path().file_name().expect("the directory has a name"));
            for vdev in vdevs {
                c.args(["--vdev", vdev]);
            }
            if devices.arguments.contains("vectorized=1") {
                c.arg("--force-max-simd-bitwidth=512");
            }
            let queues = devices.queues;
            // Without merged buffers a 9000-byte frame needs one buffer that long.
            let mbuf = if devices.mergeable { 2176 } else { 9728 };
            c.args(["--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024", "--burst=32", "--max-pkt-len=9018"]);
            c.args([format!("--rxq={queues}"), format!("--txq={queues}"), format!("--mbuf-size={mbuf}")]);
            c.args([
                format!("--total-num-mbufs={}", 6000 * queues.min(2)),
                "--disable-device-start".into(),
                "--no-flush-rx".into(),
            ]);
            c.stdin(Stdio::piped()).stdout(out.try_clone().expect("a second handle")).stderr(out);
        });
        let stdin = child.stdin.take();
        let mut testpmd = Self { child, stdin, log, read: 0, _dir: dir };
        testpmd.prompt();
        testpmd
    }

    /// Waits for the next prompt and returns what came before it.
    fn prompt(&mut self) -> String {
        let mut said = String::new();
        let (child, log, read) = (&mut self.child, &self.log, &mut self.read);
        crate::wait_for("testpmd's prompt", Duration::from_secs(30), || {
            let all = std::fs::read(log).unwrap_or_default();
            let new = String::from_utf8_lossy(all.get(*read..).unwrap_or_default()).into_owned();
            if let Some(at) = new.find(PROMPT) {
                *read += at + PROMPT.len();
                said = new[..at].into();
                return true;
            }
            if let Ok(Some(status)) = child.try_wait() {
                panic!("testpmd ended with {status}:\n{}", last_lines(&String::from_utf8_lossy(&all), 15));
            }
            false
        });
        said
    }

    /// Types one command and returns what it prints.
    fn say(&mut self, command: &str) -> String {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{command}").expect("testpmd reads its commands");
        self.prompt()
    }

    /// Packets a port has received so far.
    fn received(&mut self, port: usize) -> u64 {
        let stats = self.say(&format!("show port stats {port}"));
        let after = stats.split("RX-packets:").nth(1).and_then(|s| s.split_ascii_whitespace().next());
        after.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no RX-packets in {stats:?}"))
    }

    /// Ends it, so that its files are complete.
    fn quit(mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = writeln!(stdin, "quit");
        }
        crate::wait_for("testpmd's end", Duration::from_secs(20), || self.child.try_wait().is_ok_and(|s| s.is_some()));
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        if std::env::var_os("LASTHOP_TESTPMD_LOG").is_some() {
            eprintln!("{text}");
        } else if std::thread::panicking() {
            eprintln!("--- testpmd\n{}", last_lines(&text, 20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
