//! `liblasthop_ovs.so`: in a program that is started with it (LD_PRELOAD; `lasthop ovs exec` does that) generic netlink sockets are
//! connections to `lasthop-ovs`, so that Open vSwitch speaks to it and takes it for the kernel. All other sockets are the kernel's.
//!
//! Of messages no more is looked at than their type, and of each socket no more is kept than its descriptors. The other side is `bin/lasthop-ovs/src/client.rs`.
//! Open vSwitch reads the answers to what it sends without waiting, because the kernel has them ready when send(2) returns. So each socket has a
//! second connection, on which lasthop-ovs says "." when all answers lie in the first, or "+" when there was room for a part of them;
//! whoever has read that part gets the next when it asks with "m".
//!
//! When lasthop-ovs has died, or `lasthop run` was started again, whoever uses a socket next connects it to the one that has taken its place, under the number that it had, with
//! what lasthop-ovs has given it to prove that. A receiver is
//! told that something was lost (ENOBUFS), as the kernel says where a socket had no room: Open vSwitch then asks again.
//! While there is none, whoever needs it waits ([`away`]): the kernel's datapath is never away, and of ports that it is told nothing of Open vSwitch takes for gone what there is.
//! It would put them into its bridges again under other numbers, which no OpenFlow rule of before knows.
//!
//! A routing netlink socket stays the kernel's, but makes no interfaces for tunnels of Open vSwitch: these are to be lasthop's. And what Open vSwitch has the
//! kernel limit (`tc`) is asked of lasthop-ovs first ([`traffic`]).
//!
//! Unsafe room: the functions here stand in place of the C library's, and are called with what a C program has at hand. Their own calls go
//! to the kernel (`libc::syscall`), never through the C library's functions of these names, which are these.
#![allow(unsafe_code)]

mod away;
mod traffic;

use away::{is_answered, wait_until};
use libc::{c_int, c_long, c_void, msghdr, size_t, sockaddr, sockaddr_nl, sockaddr_un, socklen_t, ssize_t};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most descriptors of a program.
const DESCRIPTORS: usize = 65_536;
/// What is said first, with the second connection, and in front of the number that the socket had before and what proves that, or zeros. It stands in the library's
/// file, where `lasthop ovs exec` looks for it.
#[unsafe(no_mangle)]
pub static LASTHOP_OVS_HELLO: [u8; 13] = *b"lasthop-ovs 3";
/// Bytes of a number and its proof.
const NUMBER: usize = 12;
/// Where lasthop-ovs listens, unless the environment says so.
const SOCKET: &[u8] = b"/run/lasthop/ovs.sock";
const VARIABLE: &[u8] = b"LASTHOP_OVS_SOCKET\0";

/// Of each descriptor that is ours the number that lasthop-ovs has given it, which stands for a netlink socket's; 0 for others.
static PID: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// What proves that the number is its own.
static PROOF: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// Its second connection.
static SECOND: [AtomicI32; DESCRIPTORS] = [const { AtomicI32::new(-1) }; DESCRIPTORS];
/// Not 0: it is a routing netlink socket of the kernel's.
static ROUTE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// Not 0: there was room for a part of the answers.
static OWED: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// Groups that it has joined: bit n for group n.
static GROUPS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// Not 0: the answers to what was sent last are lost.
static LOST: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// How many answers wait at a routing netlink socket in place of the kernel's.
static QUEUED: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// Held by whoever connects a socket anew: several threads may find at once that it is broken.
static CONNECTING: Mutex<()> = Mutex::new(());

// Relaxed: a descriptor is handed from one thread to another by what orders that.

/// Where a descriptor's entries are, if it is ours.
fn ours(fd: c_int) -> Option<usize> {
    let at = usize::try_from(fd).ok()?;
    (PID.get(at)?.load(Relaxed) != 0).then_some(at)
}

/// It is a routing netlink socket of the kernel's.
fn is_route(fd: c_int) -> bool {
    usize::try_from(fd).ok().and_then(|at| ROUTE.get(at)).is_some_and(|route| route.load(Relaxed) != 0)
}

fn set_errno(number: c_int) {
    // SAFETY: the C library's errno of this thread is always there.
    unsafe { *libc::__errno_location() = number }
}

fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

fn close_one(fd: c_int) {
    // SAFETY: close(2) takes a number.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// One byte from a second connection, waited for; `None` if lasthop-ovs is gone.
fn hear(second: c_int) -> Option<u8> {
    let mut byte = 0u8;
    loop {
        // SAFETY: the byte is a live local of the length given.
        let n = unsafe { libc::syscall(libc::SYS_recvfrom, second, &raw mut byte, 1usize, 0, 0usize, 0usize) };
        match n {
            1 => return Some(byte),
            -1 if errno() == libc::EINTR => {}
            _ => return None,
        }
    }
}

/// Says something on a second connection.
fn say(second: c_int, bytes: &[u8]) -> bool {
    // SAFETY: the bytes are live, and their length is given.
    let n = unsafe {
        libc::syscall(libc::SYS_sendto, second, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, 0usize, 0usize)
    };
    n == bytes.len() as c_long
}

/// A datagram has been sent: waits for its answers.
fn wait_for_answers(at: usize) {
    let kept = errno();
    if let (Some(second), Some(owed), Some(lost)) = (SECOND.get(at), OWED.get(at), LOST.get(at)) {
        let said = hear(second.load(Relaxed));
        owed.store(u32::from(said == Some(b'+')), Relaxed);
        lost.store(said.is_none().into(), Relaxed);
    }
    set_errno(kept);
}

/// What was there has been read. True if there is more now.
fn ask_for_more(at: usize) -> bool {
    let (Some(second), Some(owed)) = (SECOND.get(at), OWED.get(at)) else { return false };
    if owed.load(Relaxed) == 0 {
        return false;
    }
    let second = second.load(Relaxed);
    let said = if say(second, b"m") { hear(second) } else { None };
    owed.store(u32::from(said == Some(b'+')), Relaxed);
    said.is_some()
}

/// The address that lasthop-ovs listens on.
fn address() -> Option<sockaddr_un> {
    // SAFETY: all-zero is a valid address.
    let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // SAFETY: the name ends with a zero; what getenv(3) returns is null or ends with one and stays until the environment is changed, which
    // no program does that has threads.
    let path = unsafe {
        let found = libc::getenv(VARIABLE.as_ptr().cast());
        if found.is_null() { SOCKET } else { std::ffi::CStr::from_ptr(found).to_bytes() }
    };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return None;
    }
    address.sun_path.iter_mut().zip(path).for_each(|(to, byte)| *to = *byte as libc::c_char);
    Some(address)
}

/// A socket's number, and what proves that it is its own; zeros: it has none.
type Number = (u32, u64);

/// Sends hello and the second connection's other end, and hears the socket's number: `before`, if it had one that lasthop-ovs has given it.
fn greet(fd: c_int, pair: [c_int; 2], before: Number) -> Option<Number> {
    let mut hello = [0u8; LASTHOP_OVS_HELLO.len() + NUMBER];
    // SAFETY: a live static. What is said is what stands in the file, whatever a compiler knows of it.
    let said = unsafe { (&raw const LASTHOP_OVS_HELLO).read_volatile() };
    let said = said.into_iter().chain(before.0.to_ne_bytes()).chain(before.1.to_ne_bytes());
    hello.iter_mut().zip(said).for_each(|(to, byte)| *to = byte);
    let mut part = libc::iovec { iov_base: hello.as_mut_ptr().cast(), iov_len: hello.len() };
    // As long and as aligned as a control message with one descriptor.
    let mut control = [0u64; 4];
    // SAFETY: all-zero is a valid message; what it points to are live locals of the lengths given, and the control message lies inside of
    // its room, which is larger than CMSG_SPACE of one descriptor.
    let (sent, heard, number) = unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(pair[1]);
        let sent = libc::syscall(libc::SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL);
        close_one(pair[1]);
        let mut number = [0u8; NUMBER];
        let heard = match is_answered(pair[0]) {
            true => libc::syscall(libc::SYS_recvfrom, pair[0], &raw mut number, NUMBER, 0, 0usize, 0usize),
            false => -1,
        };
        (sent, heard, number)
    };
    let [a, b, c, d, proof @ ..] = number;
    let (pid, proof) = (u32::from_ne_bytes([a, b, c, d]), u64::from_ne_bytes(proof));
    let is_whole = sent == hello.len() as c_long && heard == NUMBER as c_long;
    (is_whole && pid != 0).then_some((pid, proof))
}

/// A connection to lasthop-ovs and its second one, and the number that it has; `before`: the number that it had.
fn open(flags: c_int, before: Number) -> Option<(c_int, c_int, Number)> {
    let address = address()?;
    let kind = libc::SOCK_SEQPACKET | flags & libc::SOCK_CLOEXEC;
    let mut pair = [-1; 2];
    // SAFETY: the address and the pair are live locals of the lengths given; all else are numbers.
    let (fd, connected, paired) = unsafe {
        let fd = libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) as c_int;
        let len = size_of::<sockaddr_un>();
        let connected = libc::syscall(libc::SYS_connect, fd, &raw const address, len);
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        (fd, connected, libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, &raw mut pair))
    };
    let number = match (connected, paired) {
        (0, 0) => greet(fd, pair, before),
        (_, 0) => {
            close_one(pair[1]);
            None
        }
        _ => None,
    };
    if number.is_none() {
        [fd, pair[0]].into_iter().filter(|fd| *fd >= 0).for_each(close_one);
    }
    Some((fd, pair[0], number?))
}

/// A connection to lasthop-ovs in place of a generic netlink socket; -1 and EPROTONOSUPPORT, as of a kernel without it, if there is none.
fn connect_to_lasthop(flags: c_int) -> c_int {
    let opened = wait_until(|| open(flags, (0, 0)));
    let at = opened.and_then(|(fd, ..)| usize::try_from(fd).ok());
    let place = at.and_then(|at| Some((PID.get(at)?, SECOND.get(at)?, OWED.get(at)?, GROUPS.get(at)?, LOST.get(at)?)));
    let (Some((fd, second, (number, proof))), Some(place)) = (opened, place) else {
        opened.into_iter().flat_map(|(fd, second, _)| [fd, second]).for_each(close_one);
        set_errno(libc::EPROTONOSUPPORT);
        return -1;
    };
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: fcntl(2) takes numbers here.
        unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK) };
    }
    place.1.store(second, Relaxed);
    [place.2, place.3, place.4].iter().for_each(|of| of.store(0, Relaxed));
    PROOF.iter().skip(fd as usize).take(1).for_each(|of| of.store(proof, Relaxed));
    place.0.store(number, Relaxed);
    fd
}

/// Joins or leaves a group.
fn say_of_group(second: c_int, how: u8, group: u32) -> bool {
    let [a, b, c, d] = group.to_ne_bytes();
    say(second, &[how, a, b, c, d]) && hear(second).is_some()
}

/// The other end of a connection is gone.
fn is_broken(fd: c_int) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the byte is a live local of the length given.
    let n = unsafe { libc::syscall(libc::SYS_recvfrom, fd, &raw mut byte, 1usize, flags, 0usize, 0usize) };
    n == 0 || n < 0 && !matches!(errno(), libc::EAGAIN | libc::EINTR)
}

/// lasthop-ovs is gone: connects a socket to the one that has taken its place, and waits for it. False if there is none for too long.
fn reconnect(at: usize) -> bool {
    wait_until(|| connect_anew(at)).unwrap_or(false)
}

/// Connects a socket anew. `None`: nobody is there; false: it cannot be used.
fn connect_anew(at: usize) -> Option<bool> {
    let place = || Some((PID.get(at)?, PROOF.get(at)?, SECOND.get(at)?, OWED.get(at)?, GROUPS.get(at)?, LOST.get(at)?));
    let (Ok(fd), Some((pid, proof, second, owed, groups, lost))) = (c_int::try_from(at), place()) else {
        return Some(false);
    };
    let _connecting = CONNECTING.lock();
    if !is_broken(fd) && !is_broken(second.load(Relaxed)) {
        // Another thread has done it.
        return Some(true);
    }
    let before = (pid.load(Relaxed), proof.load(Relaxed));
    let (new, new_second, number) = open(libc::SOCK_CLOEXEC, before)?;
    // SAFETY: all are numbers. The descriptor is the program's, which uses it now: what it is stands for is put behind it.
    let replaced = unsafe {
        let flags = libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL, 0);
        libc::syscall(libc::SYS_fcntl, new, libc::F_SETFL, flags & c_long::from(libc::O_NONBLOCK));
        let closes = libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD, 0) & c_long::from(libc::FD_CLOEXEC) != 0;
        libc::syscall(libc::SYS_dup3, new, fd, if closes { libc::O_CLOEXEC } else { 0 })
    };
    close_one(new);
    close_one(second.swap(new_second, Relaxed));
    // Another than before is of a lasthop whose files in the run directory are gone, and with them what proves the number.
    pid.store(number.0, Relaxed);
    proof.store(number.1, Relaxed);
    owed.store(0, Relaxed);
    lost.store(0, Relaxed);
    let groups = groups.load(Relaxed);
    let joined = (0..u32::BITS).filter(|n| groups & 1 << n != 0).all(|n| say_of_group(new_second, b'j', n));
    Some(replaced >= 0 && joined)
}

/// Sends, once more if lasthop-ovs was gone and another has taken its place: that has not heard it.
fn send_to_lasthop(at: usize, send: impl Fn() -> c_long) -> ssize_t {
    let mut sent = send();
    if sent < 0 && matches!(errno(), libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) && reconnect(at) {
        sent = send();
    }
    if sent > 0 {
        wait_for_answers(at);
    }
    sent as ssize_t
}

/// socket(2).
///
/// # Safety
/// None is asked for: it takes numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && matches!(protocol, libc::NETLINK_GENERIC | libc::NETLINK_NETFILTER) {
        return connect_to_lasthop(kind);
    }
    // SAFETY: socket(2) takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int };
    if let Some(route) = usize::try_from(fd).ok().and_then(|at| ROUTE.get(at)) {
        route.store((domain == libc::AF_NETLINK && protocol == libc::NETLINK_ROUTE).into(), Relaxed);
    }
    fd
}

/// close(2).
///
/// # Safety
/// As of close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some((pid, second)) = ours(fd).and_then(|at| Some((PID.get(at)?, SECOND.get(at)?))) {
        pid.store(0, Relaxed);
        close_one(second.swap(-1, Relaxed));
    }
    if is_route(fd) {
        traffic::forget(fd as usize);
    }
    // SAFETY: close(2) takes a number.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// bind(2): ours has its number already.
///
/// # Safety
/// As of bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if ours(fd).is_some() {
        return 0;
    }
    // SAFETY: the caller's address, of the length that it gives.
    unsafe { libc::syscall(libc::SYS_bind, fd, address, len) as c_int }
}

/// connect(2): ours is connected.
///
/// # Safety
/// As of connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if ours(fd).is_some() {
        return 0;
    }
    // SAFETY: the caller's address, of the length that it gives.
    unsafe { libc::syscall(libc::SYS_connect, fd, address, len) as c_int }
}

/// getsockname(2): of ours a netlink socket's address.
///
/// # Safety
/// As of getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(pid) = ours(fd).and_then(|at| PID.get(at)) else {
        // SAFETY: the caller's address and length.
        return unsafe { libc::syscall(libc::SYS_getsockname, fd, address, len) as c_int };
    };
    // SAFETY: all-zero is a valid address. The caller's has room for as many bytes as its length says; no more are written.
    unsafe {
        let mut own: sockaddr_nl = std::mem::zeroed();
        (own.nl_family, own.nl_pid) = (libc::AF_NETLINK as libc::sa_family_t, pid.load(Relaxed));
        let room = (*len as usize).min(size_of::<sockaddr_nl>());
        std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), address.cast::<u8>(), room);
        *len = size_of::<sockaddr_nl>() as socklen_t;
    }
    0
}

/// setsockopt(2): ours joins and leaves groups, and other options of netlink sockets it has none of.
///
/// # Safety
/// As of setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let (Some(second), libc::SOL_NETLINK) = (ours(fd).and_then(|at| SECOND.get(at)), level) {
        let how = match option {
            libc::NETLINK_ADD_MEMBERSHIP => b'j',
            libc::NETLINK_DROP_MEMBERSHIP => b'l',
            _ => return 0,
        };
        if (len as usize) < size_of::<u32>() {
            set_errno(libc::EINVAL);
            return -1;
        }
        // SAFETY: the caller's value has the length that it gives, which is enough.
        let group = unsafe { value.cast::<u32>().read_unaligned() };
        if say_of_group(second.load(Relaxed), how, group) {
            let bit = 1u32.checked_shl(group).unwrap_or(0);
            if let Some(groups) = usize::try_from(fd).ok().and_then(|at| GROUPS.get(at)) {
                let before = groups.load(Relaxed) & !bit;
                groups.store(before | if how == b'j' { bit } else { 0 }, Relaxed);
            }
            return 0;
        }
        set_errno(libc::ECONNRESET);
        return -1;
    }
    // SAFETY: the caller's value, of the length that it gives.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, option, value, len) as c_int }
}

/// send(2).
///
/// # Safety
/// As of send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's bytes, of the length that it gives.
    let send = |more: c_int| unsafe { libc::syscall(libc::SYS_sendto, fd, bytes, len, flags | more, 0usize, 0usize) };
    match ours(fd) {
        Some(at) => send_to_lasthop(at, || send(libc::MSG_NOSIGNAL)),
        // SAFETY: as above; the bytes are not null where there are some.
        None if is_route(fd)
            && len > 0
            && traffic::take(fd, unsafe { std::slice::from_raw_parts(bytes.cast(), len) }) =>
        {
            len as ssize_t
        }
        None => send(0) as ssize_t,
    }
}

/// The bytes of a message.
///
/// # Safety
/// As of sendmsg(2): the message's parts are readable.
unsafe fn whole(message: &msghdr) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..message.msg_iovlen {
        // SAFETY: as the caller says.
        unsafe {
            let part = message.msg_iov.add(i).read();
            if part.iov_len > 0 {
                bytes.extend_from_slice(std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len));
            }
        }
    }
    bytes
}

/// A request to make a tunnel's interface, if this is one, as a request that no kernel knows. Open vSwitch makes its tunnels' interfaces itself where
/// the kernel can, and packets of theirs would pass lasthop by. Answered with EOPNOTSUPP, as by a kernel without such tunnels, it asks the
/// datapath for the tunnel instead.
fn without_new_link(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    /// linux/rtnetlink.h; the last is above all that there are.
    const RTM_NEWLINK: u16 = 16;
    const RTM_NONE: u16 = 0xfff0;
    const NLM_F_CREATE: u16 = 0x400;
    /// What Open vSwitch's names of its tunnels' interfaces have in them: `vxlan_sys_4789`, `genev_sys_6081`, `gre_sys`.
    const TUNNEL_NAME: &[u8] = b"_sys";
    let &[_, _, _, _, k0, k1, f0, f1] = bytes.first_chunk()?;
    let (kind, flags) = (u16::from_ne_bytes([k0, k1]), u16::from_ne_bytes([f0, f1]));
    // Interfaces of other names are made: programs of the same service make them, too.
    if kind != RTM_NEWLINK || flags & NLM_F_CREATE == 0 || !bytes.windows(TUNNEL_NAME.len()).any(|at| at == TUNNEL_NAME)
    {
        return None;
    }
    bytes.get_mut(4..6)?.copy_from_slice(&RTM_NONE.to_ne_bytes());
    Some(bytes)
}

/// sendmsg(2): ours is connected, whatever address the message has.
///
/// # Safety
/// As of sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(at) = ours(fd) else {
        // SAFETY: the caller's message, or a copy of it whose one part is a live local.
        return unsafe {
            let bytes = Some(message).filter(|_| is_route(fd)).map(|message| whole(&*message));
            if let Some(taken) = bytes.as_ref().filter(|bytes| traffic::take(fd, bytes)) {
                return taken.len() as ssize_t;
            }
            if let Some(mut bytes) = bytes.and_then(without_new_link) {
                let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
                let message = msghdr { msg_iov: &raw mut part, msg_iovlen: 1, ..*message };
                return libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) as ssize_t;
            }
            libc::syscall(libc::SYS_sendmsg, fd, message, flags) as ssize_t
        };
    };
    // SAFETY: a copy of the caller's message, which points to what is the caller's; without the address of a netlink socket.
    send_to_lasthop(at, || unsafe {
        let mut message = *message;
        (message.msg_name, message.msg_namelen) = (std::ptr::null_mut(), 0);
        libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags | libc::MSG_NOSIGNAL)
    })
}

/// Receives as `receive` does with these flags, and what lasthop-ovs still owes once all that is there has been read.
fn receive(fd: c_int, flags: c_int, receive: impl Fn(c_int) -> c_long) -> ssize_t {
    loop {
        let owing = ours(fd).filter(|at| OWED.get(*at).is_some_and(|owed| owed.load(Relaxed) != 0));
        // While more is owed nothing else will come: it has to be asked for.
        let got = receive(flags | if owing.is_some() { libc::MSG_DONTWAIT } else { 0 });
        let is_broken = got == 0 || got < 0 && errno() == libc::ECONNRESET;
        if let Some(at) = ours(fd) {
            let was_lost = LOST.get(at).is_some_and(|lost| lost.swap(0, Relaxed) != 0);
            if is_broken || was_lost && got < 0 {
                set_errno(if reconnect(at) { libc::ENOBUFS } else { libc::ECONNRESET });
                return -1;
            }
        }
        match owing {
            Some(at) if got < 0 && errno() == libc::EAGAIN && ask_for_more(at) => {}
            _ => return got as ssize_t,
        }
    }
}

/// recvmsg(2).
///
/// # Safety
/// As of recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if let Some(answer) = usize::try_from(fd).ok().filter(|_| is_route(fd)).and_then(traffic::next) {
        // SAFETY: the caller's message, whose parts are writable.
        return unsafe { traffic::put(&answer, &mut *message) };
    }
    // SAFETY: the caller's message.
    receive(fd, flags, |flags| unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) })
}

/// recv(2).
///
/// # Safety
/// As of recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, room: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's room, of the length that it gives.
    receive(fd, flags, |flags| unsafe { libc::syscall(libc::SYS_recvfrom, fd, room, len, flags, 0usize, 0usize) })
}
