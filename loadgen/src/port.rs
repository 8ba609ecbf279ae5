//! A guest's network card as the generator plays it: memory, rings, a vhost-user connection.

use super::grants::{Area, Granter};
use super::{Failure, Notify, Outcome, Settings, failed};
use lasthop_guestmem::{GuestMemory, GuestSlice, PinnedSlice, RegionSpec};
use lasthop_sys::EventFd;
use lasthop_vhostuser::{Features, Frontend, FrontendError, ProtocolFeatures};
use lasthop_virtqueue::driver::{DriverError, DriverRing, RingLayout};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a back-end may take to answer a message.
const PATIENCE: Duration = Duration::from_secs(10);
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Where the memory lies for the device and, different, in our own address space as far as it is told.
const GUEST_BASE: u64 = 0x1000_0000;
const USER_BASE: u64 = 0x7a00_0000_0000;

/// A vhost-user socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// The generator listens and the switch connects; otherwise the other way round.
    pub listen: bool,
}

/// Memory that all ports of one thread share: a buffer received by one can be sent by another, as in a DPDK program.
#[derive(Debug)]
pub struct Memory {
    memfd: OwnedFd,
    region: RegionSpec,
    memory: Arc<GuestMemory>,
    all: PinnedSlice,
    taken: u64,
}

impl Memory {
    /// So many bytes; in huge pages where there are enough of them and `huge` is not `Some(false)`; an error when it is
    /// `Some(true)` and there are not.
    pub fn new(bytes: u64, huge: Option<bool>) -> Outcome<Self> {
        let in_huge_pages = || -> rustix::io::Result<(OwnedFd, u64)> {
            let size = bytes.next_multiple_of(HUGE_PAGE);
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            let fd = memfd_create("lasthop-loadgen", flags)?;
            ftruncate(&fd, size)?;
            // Taken now: a page that is missing later would be a SIGBUS.
            fallocate(&fd, FallocateFlags::empty(), 0, size)?;
            Ok((fd, size))
        };
        let plain = || -> Outcome<(OwnedFd, u64)> {
            let size = bytes.next_multiple_of(PAGE);
            Ok((lasthop_sys::memfd("lasthop-loadgen", size).map_err(failed)?, size))
        };
        let (memfd, size) = match (huge, if huge == Some(false) { None } else { Some(in_huge_pages()) }) {
            (_, Some(Ok(made))) => made,
            (Some(true), Some(Err(e))) => {
                let pages = bytes.div_ceil(HUGE_PAGE);
                return Err(failed(format!("cannot get {pages} huge pages of 2 MiB ({e}): see /proc/meminfo")));
            }
            _ => plain()?,
        };
        let region = RegionSpec { guest_addr: GUEST_BASE, user_addr: USER_BASE, size, mmap_offset: 0 };
        let memory = Arc::new(GuestMemory::empty().with_region(region, &memfd).map_err(failed)?);
        let all = PinnedSlice::new(&memory, GUEST_BASE, size as usize).map_err(failed)?;
        Ok(Self { memfd, region, memory, all, taken: 0 })
    }

    /// Guest address of the next `len` bytes that nobody has.
    pub fn take(&mut self, len: u64) -> Outcome<u64> {
        let at = self.taken;
        self.taken += len.next_multiple_of(PAGE);
        if self.taken > self.region.size {
            return Err(failed("the memory was reckoned too small: a bug"));
        }
        Ok(GUEST_BASE + at)
    }

    /// Bytes at a guest address, as many as there are.
    #[inline]
    pub fn slice(&self, addr: u64, len: usize) -> GuestSlice<'_> {
        self.all.get().part((addr - GUEST_BASE) as usize, len)
    }

    fn user(&self, addr: u64) -> u64 {
        addr - GUEST_BASE + USER_BASE
    }

    fn area(&self) -> Area {
        Area { base: GUEST_BASE, user: USER_BASE, size: self.region.size }
    }
}

/// Buffers of one length, one after the other, or anywhere.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Guest address of the first.
    pub base: u64,
    /// Bytes from one to the next.
    pub stride: u64,
    /// Where each lies, if not one after the other.
    pub places: Vec<u64>,
}

impl Buffers {
    /// One after the other from `base`.
    pub fn in_line(base: u64, stride: u64) -> Self {
        Self { base, stride, places: Vec::new() }
    }

    /// Distance of buffers that hold `len` bytes: an odd number of cache lines, or they would all compete for the same
    /// few places in the caches.
    pub fn stride(len: usize) -> u64 {
        64 * ((len as u64).div_ceil(64) | 1)
    }

    /// Distance of buffers that hold `len` bytes in a slab, whose objects lie in as few pages as they can: a power of two, or whole pages.
    pub fn slab(len: usize) -> u64 {
        let len = len as u64;
        if len > PAGE { len.next_multiple_of(PAGE) } else { len.next_power_of_two() }
    }

    /// Guest address of a buffer.
    #[inline]
    pub fn at(&self, token: u32) -> u64 {
        self.places.get(token as usize).copied().unwrap_or_else(|| self.base + u64::from(token) * self.stride)
    }
}

/// One ring and its events.
#[derive(Debug)]
pub struct Ring {
    /// The ring.
    pub ring: DriverRing,
    /// We signal it when the device is to look.
    pub kick: EventFd,
    /// The device signals it when we are to look.
    pub call: EventFd,
    /// Kicks so far.
    pub kicks: u64,
}

impl Ring {
    /// Bytes of memory for a ring.
    pub fn bytes(settings: &Settings) -> u64 {
        RingLayout::bytes(settings.ring_size, settings.packed).next_multiple_of(PAGE)
    }

    /// Shows the device what was added, and kicks it if it wants that.
    #[inline]
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick.signal();
            self.kicks += 1;
        }
    }
}

/// A port that is connected.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// Receive rings.
    pub rx: Vec<Ring>,
    /// Send rings.
    pub tx: Vec<Ring>,
    /// What was negotiated.
    pub features: Features,
    /// Where one's descriptor closes when the back-end goes.
    pub front: Frontend,
    /// What it has granted, if it does so page by page.
    pub grants: Option<Granter>,
}

/// The sockets on which the generator listens; their files go when it does.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens; replaces the socket that somebody left behind.
    pub fn bind(path: &Path) -> Outcome<Self> {
        let why = |e: std::io::Error| failed(format!("cannot listen on {}: {e}", path.display()));
        let abandoned = || {
            let socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            socket && UnixStream::connect(path).is_err()
        };
        let listener = match UnixListener::bind(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && abandoned() => {
                std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
            }
            bound => bound,
        };
        let listener = listener.map_err(why)?;
        listener.set_nonblocking(true).map_err(why)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits until the switch has connected, or until it can be connected to. `check` is asked now and then.
pub fn connect(
    socket: &Socket,
    listener: Option<&Listener>,
    limit: Duration,
    check: &dyn Fn() -> Outcome<()>,
) -> Outcome<Frontend> {
    let end = Instant::now() + limit;
    let path = socket.path.display();
    loop {
        let why = match listener {
            Some(l) => match l.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(failed)?;
                    set_socket_timeout(&stream, Timeout::Recv, Some(PATIENCE)).map_err(failed)?;
                    return Ok(Frontend::over(stream.into()));
                }
                Err(_) => format!("nobody has connected to {path}"),
            },
            None => match Frontend::connect(&socket.path) {
                Ok(front) => {
                    set_socket_timeout(&front, Timeout::Recv, Some(PATIENCE)).map_err(failed)?;
                    return Ok(front);
                }
                Err(e) => format!("cannot connect to {path}: {e}"),
            },
        };
        check()?;
        if Instant::now() > end {
            return Err(failed(format!("{why}; waited {} s", limit.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a port wants to negotiate.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Features without which it cannot do.
    pub needed: Features,
    /// Features that it takes if they are offered.
    pub welcome: Features,
    /// Protocol features that it takes if they are offered.
    pub protocol: ProtocolFeatures,
}

impl Wanted {
    /// What the settings ask for.
    pub fn of(settings: &Settings) -> Self {
        let asks = if settings.grants.is_some() { ProtocolFeatures::BACKEND_REQ } else { ProtocolFeatures::empty() };
        let protocol = ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK | asks;
        Self { needed: settings.features_needed(), welcome: settings.features_welcome(), protocol }
    }
}

/// Brings a port up: negotiates, lays out its rings in `memory`, hands them over and enables them.
pub fn bring_up(
    mut front: Frontend,
    number: u16,
    settings: &Settings,
    wanted: Wanted,
    memory: &mut Memory,
) -> Outcome<Port> {
    let told = |e: FrontendError| failed(format!("port {number}: {e}"));
    front.set_owner().map_err(told)?;
    let offered = front.features().map_err(told)?;
    let needed = wanted.needed;
    if !offered.contains(needed) {
        let missing = Features::describe((needed - offered).bits());
        return Err(failed(format!("port {number}: the back-end does not offer {missing}")));
    }
    let features = offered & (needed | wanted.welcome);
    let protocol = front.protocol_features().map_err(told)? & wanted.protocol;
    front.set_protocol_features(protocol).map_err(told)?;
    let pairs = u64::from(settings.queues);
    if pairs > 1 {
        let most = if protocol.contains(ProtocolFeatures::MQ) { front.queue_pairs().map_err(told)? } else { 1 };
        if most < pairs {
            return Err(failed(format!("port {number}: the back-end has {most} queue pairs, not {pairs}")));
        }
    }
    let buffers = 2 * usize::from(settings.ring_size) * usize::from(settings.queues);
    let grants = settings.grants.map(|grants| Granter::new(&front, grants, memory.area(), buffers)).transpose()?;
    front.set_features(features).map_err(told)?;
    front.set_mem_table(&[(memory.region, memory.memfd.as_fd())]).map_err(told)?;
    let (mut rings, mut places) = ([Vec::new(), Vec::new()], Vec::new());
    for index in 0..2 * u32::from(settings.queues) {
        let at = memory.take(Ring::bytes(settings))?;
        places.push(at);
        let mut layout = RingLayout::contiguous(at, settings.ring_size, settings.packed);
        layout.event_idx = features.contains(Features::RING_EVENT_IDX);
        layout.in_order = features.contains(Features::IN_ORDER);
        let mut ring = DriverRing::new(layout, memory.memory.clone()).map_err(failed)?;
        if settings.notify == Notify::Poll {
            ring.disable_calls();
        }
        let ring =
            Ring { ring, kick: EventFd::new().map_err(failed)?, call: EventFd::new().map_err(failed)?, kicks: 0 };
        front.set_size(index, u32::from(layout.size)).map_err(told)?;
        front.set_base(index, ring.ring.base()).map_err(told)?;
        // With an IOMMU they are I/O addresses.
        let address = |a| if grants.is_some() { a } else { memory.user(a) };
        let [desc, driver, device] = [layout.desc, layout.driver, layout.device].map(address);
        front.set_addr(index, desc, driver, device).map_err(told)?;
        front.set_call(index, Some(ring.call.as_fd())).map_err(told)?;
        front.set_kick(index, Some(ring.kick.as_fd())).map_err(told)?;
        rings[index as usize % 2].push(ring);
    }
    for index in 0..2 * u32::from(settings.queues) {
        front.enable(index, true).map_err(told)?;
    }
    let [rx, tx] = rings;
    let mut port = Port { number, rx, tx, features, front, grants };
    if let Some(grants) = &mut port.grants {
        grants.all(&port.front)?;
        places.into_iter().try_for_each(|at| grants.ring(&port.front, at, Ring::bytes(settings)))?;
    }
    Ok(port)
}

/// What a back-end did to a ring that it must not.
pub(crate) fn broken(e: DriverError) -> Failure {
    failed(format!("the switch breaks the rules of virtio: {e}"))
}
