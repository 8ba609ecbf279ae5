//! A Linux VM: Debian's kernel under QEMU, a busybox root, and an agent that runs commands.

use crate::agent::{Agent, Answer};
use crate::nic::{Backend, Nic};
use crate::qmp::Qmp;
use crate::{image, last_lines, proc, scratch, spawn};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// How long a VM may take to boot. Two to four seconds are usual; a machine that does much else may need minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// How long a VM may take to move.
const MOVE_LIMIT: Duration = Duration::from_secs(90);

/// What backs the guest's memory. vhost-user needs memory that can be shared by descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A memfd of small pages.
    Memfd,
    /// A memfd of 2 MiB pages.
    Huge,
    /// A memfd that QEMU maps privately: `share=off`, which is a mistake with vhost-user.
    Private,
    /// No memory backend, so there is no descriptor: a mistake too.
    Anonymous,
}

/// A VM to be started.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// For messages.
    pub name: String,
    /// Its cards; the first is eth0.
    pub nics: Vec<Nic>,
    /// What backs its memory.
    pub memory: Memory,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Its processors.
    pub cpus: u32,
    /// Its NUMA nodes, which have as many of these and as much memory each.
    pub nodes: u32,
    /// Slots for hot-plugged memory.
    pub memory_slots: u32,
    /// Its cards are behind an IOMMU of its own (QEMU's intel-iommu).
    pub iommu: bool,
    /// They have ATS, by which that IOMMU takes pages back; Linux with lazy mappings needs it.
    pub ats: bool,
    /// Further words of its kernel's command line.
    pub kernel: String,
    /// Part of a move from one QEMU to another.
    pub movable: Option<Movable>,
    /// Programs of this host that it has in /bin, with the libraries that they need.
    pub programs: Vec<PathBuf>,
}

/// Which part a VM has in a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movable {
    /// It boots, and may be moved.
    Boots,
    /// It waits for another of its kind to come.
    Waits,
}

/// As QEMU has it said.
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl VmConfig {
    /// One processor, 256 MiB of memfd memory.
    pub fn new(name: &str, nics: impl IntoIterator<Item = Nic>) -> Self {
        let nics = nics.into_iter().collect();
        Self {
            name: name.into(),
            nics,
            memory: Memory::Memfd,
            memory_mib: 256,
            cpus: 1,
            nodes: 1,
            memory_slots: 0,
            iommu: false,
            ats: true,
            kernel: String::new(),
            movable: None,
            programs: Vec::new(),
        }
    }

    /// With programs of this host.
    pub fn programs(mut self, programs: impl IntoIterator<Item = PathBuf>) -> Self {
        self.programs.extend(programs);
        self
    }

    /// With so much memory.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// With this many processors.
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// With so many NUMA nodes, of memory that no card of a vhost-user switch sees.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// The words that make its nodes, where it has several.
    fn node_words(&self) -> Vec<String> {
        let (cpus, mib) = (self.cpus / self.nodes, self.memory_mib / self.nodes);
        let words = |node: u32| {
            let last = (node + 1) * cpus - 1;
            [
                "-object".to_owned(),
                format!("memory-backend-ram,id=node{node},size={mib}M"),
                "-numa".to_owned(),
                format!("node,nodeid={node},cpus={}-{last},memdev=node{node}", node * cpus),
            ]
        };
        (0..self.nodes).filter(|_| self.nodes > 1).flat_map(words).collect()
    }

    /// With memory of 2 MiB pages.
    pub fn huge(mut self) -> Self {
        self.memory = Memory::Huge;
        self
    }

    /// Behind an IOMMU that its kernel uses as these words say, such as `iommu.strict=1`.
    pub fn iommu(mut self, words: &str) -> Self {
        self.iommu = true;
        self.kernel(&format!("intel_iommu=on {words}"))
    }

    /// Its cards cannot be told of pages that its IOMMU takes back.
    pub fn without_ats(mut self) -> Self {
        self.ats = false;
        self
    }

    /// With further words of its kernel's command line.
    pub fn kernel(mut self, words: &str) -> Self {
        self.kernel = format!("{} {words}", self.kernel);
        self
    }

    /// With a part in a move.
    pub fn movable(mut self, part: Movable) -> Self {
        self.movable = Some(part);
        self
    }

    /// Its memory as QEMU has it said.
    fn memory_size(&self) -> String {
        // QEMU 7.2 forgets a moved guest's own writes under TCG (mended in 9.0) where its memory is a multiple of 256 KiB.
        if self.movable.is_some() {
            format!("{}K", self.memory_mib * 1024 + 8)
        } else {
            format!("{}M", self.memory_mib)
        }
    }

    /// With slots for hot-plugged memory.
    pub fn memory_slots(mut self, slots: u32) -> Self {
        self.memory_slots = slots;
        self
    }
}

/// What a move came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// How long the guest stood still, as QEMU says, in milliseconds.
    pub downtime_ms: u64,
    /// How often QEMU went over what was dirty.
    pub rounds: u64,
}

/// A running VM. Dropping it ends it.
pub struct Vm {
    /// As it was asked for.
    pub config: VmConfig,
    qemu: Child,
    agent: Result<Agent, String>,
    dir: tempfile::TempDir,
}

/// What a command in the guest came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit code; 137 when it ran out of time.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// A command that runs in the guest meanwhile.
pub struct Pending {
    label: String,
    answer: Receiver<Answer>,
}

impl Pending {
    /// Its end, if it has come; panics when the VM is gone. For callers with something else to watch.
    pub fn poll(&self) -> Option<Output> {
        match self.answer.try_recv() {
            Ok((code, stdout, stderr)) => Some(Output { code, stdout, stderr }),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("{}: the VM is gone", self.label),
        }
    }

    /// Waits for its end; panics after `limit`, or when the VM is gone.
    pub fn output(self, limit: Duration) -> Output {
        match self.answer.recv_timeout(limit) {
            Ok((code, stdout, stderr)) => Output { code, stdout, stderr },
            Err(RecvTimeoutError::Timeout) => panic!("{}: no end after {limit:?}", self.label),
            Err(RecvTimeoutError::Disconnected) => panic!("{}: the VM is gone", self.label),
        }
    }

    /// Waits for its end and returns its stdout; panics unless it exits with 0.
    pub fn success(self, limit: Duration) -> String {
        let label = self.label.clone();
        let out = self.output(limit);
        assert!(out.code == 0, "{label}: exit code {}\n{}{}", out.code, out.stdout, out.stderr);
        out.stdout
    }
}

impl Vm {
    /// Boots a VM with the usual configuration and brings its cards up.
    pub fn start(name: &str, nics: impl IntoIterator<Item = Nic>) -> Self {
        Self::boot(VmConfig::new(name, nics))
    }

    /// Boots the VM and brings its cards up.
    pub fn boot(config: VmConfig) -> Self {
        Self::launch(config).ready()
    }

    /// Boots several VMs at once.
    pub fn boot_all<const N: usize>(configs: [VmConfig; N]) -> [Self; N] {
        configs.map(Self::launch).map(Self::ready)
    }

    /// Starts QEMU and does not wait.
    pub fn launch(config: VmConfig) -> Self {
        let (image, dir) = (image(), scratch());
        let netns = config.nics.iter().find_map(|n| match &n.backend {
            Backend::Tap { netns, .. } => Some(netns.clone()),
            _ => None,
        });
        let program = if netns.is_some() { "ip" } else { "qemu-system-x86_64" };
        let accel = std::env::var("LASTHOP_VM_ACCEL").unwrap_or_else(|_| "tcg".into());
        let qemu = spawn::spawn("KILL", program, |c| {
            if let Some(ns) = &netns {
                c.args(["netns", "exec", ns, "qemu-system-x86_64"]);
            }
            let (mib, huge) =
                (config.memory_mib, if config.memory == Memory::Huge { ",hugetlb=on,hugetlbsize=2M" } else { "" });
            let slots = match config.memory_slots {
                0 => String::new(),
                n => format!(",slots={n},maxmem={}M", mib + n * 128),
            };
            let at = |file: &str| dir.path().join(file).display().to_string();
            c.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-cpu", "max"]);
            let share = if config.memory == Memory::Private { "off" } else { "on" };
            let plain = config.memory == Memory::Anonymous || config.nodes > 1;
            let backend = if plain { "" } else { ",memory-backend=ram" };
            c.args(["-M", &format!("q35,accel={accel}{backend}"), "-smp", &config.cpus.to_string()]);
            let size = config.memory_size();
            c.args(["-m", &format!("{size}{slots}")]);
            c.args(config.node_words());
            if config.movable == Some(Movable::Waits) {
                c.args(["-incoming", &format!("unix:{}", at("move"))]);
            }
            if !backend.is_empty() {
                c.args(["-object", &format!("memory-backend-memfd,id=ram,size={size},share={share}{huge}")]);
            }
            let initrd = if config.programs.is_empty() {
                image.join("initrd")
            } else {
                crate::files::initrd(&image, dir.path(), &config.programs)
            };
            c.args(["-kernel", &format!("{}/vmlinuz", image.display())]);
            c.args(["-initrd", &initrd.display().to_string()]);
            // no_timer_check: on a host that does much else Linux would not believe in the emulated timer, and not boot. cryptomgr.notests:
            // what its own tests of ciphers take is a quarter of a boot.
            let words =
                "console=ttyS0 quiet panic=-1 nokaslr mitigations=off net.ifnames=0 no_timer_check cryptomgr.notests";
            c.args(["-append", &format!("{words}{}", config.kernel)]);
            if config.iommu {
                // Before the cards. Without its own ATS, QEMU never tells of a page that was mapped and unmapped between two flushes.
                c.args(["-device", &format!("intel-iommu,intremap=off,device-iotlb={}", on_off(config.ats))]);
            }
            c.args(["-serial", &format!("file:{}", at("console"))]);
            c.args(["-chardev", &format!("socket,id=agent,path={},server=on,wait=off", at("agent"))]);
            c.args(["-serial", "chardev:agent"]);
            c.args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp"))]);
            for (i, nic) in config.nics.iter().enumerate() {
                if config.iommu {
                    // On the bus of the host bridge itself QEMU leaves ATS out.
                    c.args(["-device", &format!("pcie-root-port,id=rp{i},chassis={}", i + 1)]);
                    let ats = on_off(config.ats);
                    let behind = nic.clone().with(&format!("bus=rp{i},disable-legacy=on,iommu_platform=on,ats={ats}"));
                    c.args(behind.qemu_args(i));
                } else {
                    c.args(nic.qemu_args(i));
                }
            }
            let log = std::fs::File::create(at("qemu.log")).expect("a log in the scratch directory");
            c.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        });
        let agent = Agent::connect(&dir.path().join("agent"), Duration::from_secs(20));
        Self { config, qemu, agent, dir }
    }

    /// Waits for the agent and brings the cards up.
    pub fn ready(self) -> Self {
        if let Err(e) = self.agent.as_ref().map_err(String::clone).and_then(|a| a.ready(BOOT_LIMIT)) {
            panic!(
                "VM {} did not boot: {e}
{}",
                self.config.name,
                self.logs()
            );
        }
        self.bring_up();
        self
    }

    /// Sets MTU and addresses of the cards and brings them up; needed again after the driver was loaded anew.
    pub fn bring_up(&self) {
        for (i, nic) in self.config.nics.iter().enumerate() {
            self.run(&nic.bring_up(i));
        }
    }

    /// Runs a shell command in the guest and returns its stdout; panics unless it exits with 0 within 60 s.
    pub fn run(&self, command: &str) -> String {
        self.spawn(command).success(Duration::from_secs(65))
    }

    /// Runs a shell command in the guest, whatever its exit code; it is killed after `seconds`.
    pub fn output(&self, command: &str, seconds: u64) -> Output {
        self.start_command(command, seconds).output(Duration::from_secs(seconds + 5))
    }

    /// Starts a shell command in the guest; it is killed after 60 s.
    pub fn spawn(&self, command: &str) -> Pending {
        self.start_command(command, 60)
    }

    /// Starts a shell command that goes on until the VM ends.
    pub fn background(&self, command: &str) {
        self.start_command(command, 100_000);
    }

    fn start_command(&self, command: &str, seconds: u64) -> Pending {
        let agent = self.agent.as_ref().expect("the VM has booted");
        Pending { label: format!("VM {}: {command}", self.config.name), answer: agent.ask(command, seconds) }
    }

    /// Starts the TCP and UDP servers that `lasthop-guest tcp-check` and the like talk to, on port 7000.
    pub fn serve(&self) {
        self.background("lasthop-guest tcp-serve 7000");
        self.background("lasthop-guest udp-serve 7000");
        self.run("for i in $(seq 100); do netstat -ltn | grep -q :7000 && netstat -lun | grep -q :7000 && exit 0; usleep 50000; done; exit 1");
    }

    /// Runs a command of QEMU's machine protocol; panics when QEMU refuses.
    pub fn qmp(&self, command: &str, arguments: Value) -> Value {
        let answer = Qmp::connect(&self.dir.path().join("qmp")).and_then(|mut q| q.execute(command, arguments));
        answer.unwrap_or_else(|e| panic!("VM {}: {e}", self.config.name))
    }

    /// Moves it to the QEMU of `to`, which takes its place, while `meanwhile` goes on; QEMU copies what is dirty over and over until that
    /// ends. Says how long the guest stood still, in milliseconds, and how often QEMU went over what was dirty.
    pub fn move_to(self, to: Self, meanwhile: impl FnOnce(&Self)) -> (Self, Moved) {
        let socket = to.dir.path().join("move");
        for _ in 0..200 {
            if socket.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.qmp("migrate-set-parameters", json!({"max-bandwidth": 32 << 20, "downtime-limit": 1}));
        self.qmp("migrate", json!({"uri": format!("unix:{}", socket.display())}));
        self.wait_for_move(|state| state["ram"]["dirty-sync-count"].as_u64() >= Some(2));
        meanwhile(&self);
        self.qmp("migrate-set-parameters", json!({"downtime-limit": 500}));
        let state = self.wait_for_move(|state| state["status"] == "completed");
        // The source has sent everything then; what is said to the guest before the other has loaded it is lost.
        let end = Instant::now() + MOVE_LIMIT;
        while to.qmp("query-status", json!({}))["status"] != "running" {
            assert!(Instant::now() < end, "VM {} has not arrived\n{}", to.config.name, to.logs());
            std::thread::sleep(Duration::from_millis(5));
        }
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let moved =
            Moved { downtime_ms: number(&state["downtime"]), rounds: number(&state["ram"]["dirty-sync-count"]) };
        (to, moved)
    }

    fn wait_for_move(&self, enough: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + MOVE_LIMIT;
        loop {
            let state = self.qmp("query-migrate", json!({}));
            if enough(&state) || state["status"] == "completed" {
                return state;
            }
            let goes_on = state["status"] != "failed" && Instant::now() < end;
            assert!(goes_on, "VM {} does not move: {state}\n{}", self.config.name, self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Seconds since the guest's kernel started; a reboot would set it back.
    pub fn uptime(&self) -> f64 {
        let text = self.run("cat /proc/uptime");
        text.split(' ').next().and_then(|s| s.parse().ok()).expect("/proc/uptime is a number")
    }

    /// True while QEMU runs.
    pub fn alive(&self) -> bool {
        proc::alive(self.qemu.id())
    }

    /// The last lines of QEMU's messages and of the guest's console.
    pub fn logs(&self) -> String {
        let tail = |f: &str| {
            last_lines(&String::from_utf8_lossy(&std::fs::read(self.dir.path().join(f)).unwrap_or_default()), 15)
        };
        format!("--- QEMU\n{}\n--- console\n{}", tail("qemu.log"), tail("console"))
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("VM {}\n{}", self.config.name, self.logs());
        }
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
