//! Requests about the limits of interfaces (`tc`): each is handed to lasthop-ovs, with the interface's name in front, and its answers are received from the
//! routing netlink socket as if the kernel had sent them. What lasthop-ovs has nothing to do with it gives back, and the kernel gets it.

use super::{QUEUED, close_one, hear, open, say};
use crate::away::wait_until;
use libc::{c_int, c_long, msghdr, sockaddr_nl, ssize_t};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Messages about queueing disciplines, classes and filters (linux/rtnetlink.h).
const REQUESTS: std::ops::RangeInclusive<u16> = 36..=46;
/// Type of the message with the name in front.
const INTERFACE: u16 = 0x7f10;
/// Type of an answer that says how it went.
const ERROR: u16 = 2;
/// Bytes of a message's header, and where the number of the interface is.
const HEADER: usize = 16;
const INTERFACE_AT: usize = HEADER + 4;
/// Longest answer.
const ROOM: usize = 64 * 1024;

/// Answers that wait in place of the kernel's, by descriptor.
static ANSWERS: Mutex<BTreeMap<usize, VecDeque<Vec<u8>>>> = Mutex::new(BTreeMap::new());

fn word(bytes: &[u8], at: usize) -> Option<[u8; 4]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The name of an interface.
fn name_of(fd: c_int, number: c_int) -> Option<Vec<u8>> {
    // SAFETY: all-zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = number;
    // SAFETY: the request is a live local, of the length that the kernel writes.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::SIOCGIFNAME, &raw mut request) };
    let name = request.ifr_name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    (done == 0).then_some(name)
}

/// The datagram for lasthop-ovs, if this is one that it may have to do with.
fn request(fd: c_int, bytes: &[u8]) -> Option<Vec<u8>> {
    let [kind_low, kind_high, ..] = word(bytes, 4)?;
    if !REQUESTS.contains(&u16::from_ne_bytes([kind_low, kind_high])) {
        return None;
    }
    let number = c_int::from_ne_bytes(word(bytes, INTERFACE_AT)?);
    let mut name = name_of(fd, number)?;
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    let len = (HEADER + name.len()) as u32;
    let [low, high] = INTERFACE.to_ne_bytes();
    Some([&len.to_ne_bytes()[..], &[low, high], &[0; 10], &name, bytes].concat())
}

/// How often lasthop-ovs is asked: it may die while it answers, and is there again at once.
const TRIES: usize = 3;

/// What the kernel says of a request that it could not carry out, with an error's number.
fn failure(request: &[u8], error: i32) -> Vec<u8> {
    let header = request.get(..HEADER).unwrap_or_default();
    let len = (HEADER + 4 + header.len()) as u32;
    let sequence = word(request, 8).unwrap_or_default();
    let [low, high] = ERROR.to_ne_bytes();
    [&len.to_ne_bytes()[..], &[low, high, 0, 0], &sequence, &[0; 4], &(-error).to_ne_bytes(), header].concat()
}

/// All answers to a datagram on a connection of its own; none if lasthop-ovs gives none.
fn ask(datagram: &[u8]) -> Option<VecDeque<Vec<u8>>> {
    let (fd, second, _) = wait_until(|| open(libc::SOCK_CLOEXEC, (0, 0)))?;
    let mut answers = VecDeque::new();
    let mut more = say(fd, datagram).then(|| hear(second)).flatten();
    while let Some(said) = more {
        let mut room = vec![0u8; ROOM];
        // SAFETY: the room is live, and its length is given.
        let len = unsafe {
            libc::syscall(libc::SYS_recvfrom, fd, room.as_mut_ptr(), ROOM, libc::MSG_DONTWAIT, 0usize, 0usize)
        };
        if len > 0 {
            room.truncate(len as usize);
            answers.push_back(room);
        } else if said == b'+' && say(second, b"m") {
            more = hear(second);
        } else {
            break;
        }
    }
    [fd, second].into_iter().for_each(close_one);
    more.map(|_| answers)
}

/// Whether an answer says that the request is for the kernel.
fn is_for_the_kernel(answer: &[u8]) -> bool {
    let kind = word(answer, 4).map(|[low, high, ..]| u16::from_ne_bytes([low, high]));
    kind == Some(ERROR) && word(answer, HEADER).map(i32::from_ne_bytes) == Some(-libc::EXDEV)
}

/// Takes a datagram that is sent on a routing netlink socket, if lasthop-ovs has to do with it. Its answers wait.
pub(crate) fn take(fd: c_int, bytes: &[u8]) -> bool {
    let Some(at) = usize::try_from(fd).ok() else { return false };
    let Some(datagram) = super::address().and_then(|_| request(fd, bytes)) else { return false };
    // What the kernel would be told in its place it would set at a device that no packet passes, and call that done.
    let answers = (0..TRIES).find_map(|_| ask(&datagram)).unwrap_or_else(|| [failure(bytes, libc::EAGAIN)].into());
    if answers.front().is_some_and(|first| is_for_the_kernel(first)) {
        return false;
    }
    let (Ok(mut all), Some(queued)) = (ANSWERS.lock(), QUEUED.get(at)) else { return false };
    let waiting = all.entry(at).or_default();
    waiting.extend(answers);
    queued.store(waiting.len() as u32, Relaxed);
    true
}

/// The next answer that waits.
pub(crate) fn next(at: usize) -> Option<Vec<u8>> {
    let queued = QUEUED.get(at).filter(|queued| queued.load(Relaxed) != 0)?;
    let mut all = ANSWERS.lock().ok()?;
    let waiting = all.get_mut(&at)?;
    let answer = waiting.pop_front();
    queued.store(waiting.len() as u32, Relaxed);
    answer
}

/// A descriptor is closed: nobody waits for answers any more.
pub(crate) fn forget(at: usize) {
    let had = QUEUED.get(at).is_some_and(|queued| queued.swap(0, Relaxed) != 0);
    if let (true, Ok(mut all)) = (had, ANSWERS.lock()) {
        all.remove(&at);
    }
}

/// Puts an answer into a message that is received, as from the kernel.
///
/// # Safety
/// As of recvmsg(2): the message's parts are writable.
pub(crate) unsafe fn put(answer: &[u8], message: &mut msghdr) -> ssize_t {
    let mut rest = answer;
    for i in 0..message.msg_iovlen {
        // SAFETY: as the caller says; no more is written than a part has room for.
        unsafe {
            let part = message.msg_iov.add(i).read();
            let (now, later) = rest.split_at(rest.len().min(part.iov_len));
            std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast::<u8>(), now.len());
            rest = later;
        }
    }
    message.msg_flags = if rest.is_empty() { 0 } else { libc::MSG_TRUNC };
    message.msg_controllen = 0;
    if !message.msg_name.is_null() && message.msg_namelen as usize >= size_of::<sockaddr_nl>() {
        // SAFETY: all-zero is a valid address, and there is room for one.
        unsafe {
            let mut kernel: sockaddr_nl = std::mem::zeroed();
            kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            message.msg_name.cast::<sockaddr_nl>().write_unaligned(kernel);
        }
        message.msg_namelen = size_of::<sockaddr_nl>() as _;
    }
    (answer.len() - rest.len()) as c_long as ssize_t
}
