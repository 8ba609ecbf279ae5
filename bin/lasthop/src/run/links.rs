//! The network interfaces of this namespace, as the kernel tells of them (rtnetlink(7)): which there are, and whether each is
//! up and has a carrier.
//!
//! The supervisor listens, not the uplinks' processes. One socket is enough for all of them; it knows of an interface that is
//! missing, which has no process; it goes on while a process is replaced; and a compromised process can neither pretend that its
//! cable is in nor take another uplink's place by pretending that it is not. The processes' sandbox stays as tight as it was.
//!
//! Four fields of one message are read by hand, in bounds: the libraries for rtnetlink decode every attribute and refuse a
//! message when one of them has grown in a newer kernel.

use lasthop_management_ipc::LinkState;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto, socket_with};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// linux/rtnetlink.h, linux/netlink.h, linux/if_link.h, linux/if.h.
const RTMGRP_LINK: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
/// Of an interface that is gone: the namespace that it has gone to.
const IFLA_NEW_NETNSID: u16 = 45;
const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 1 << 16;
/// `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER: usize = 16;
const INFO: usize = 16;

/// The kernel's messages are shorter; one that is longer is cut off and ignored.
const ROOM: usize = 64 * 1024;
/// Datagrams taken at a time. Whoever makes interfaces faster is heard again in the next round.
const BURST: usize = 64;
/// Datagrams of one list of all interfaces, some of them each.
const LIST_BURST: usize = 65_536;

/// What one message says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    There {
        index: i32,
        name: String,
        state: LinkState,
        mtu: Option<u32>,
    },
    Gone {
        index: i32,
        /// To another namespace.
        away: bool,
    },
    /// The list that was asked for is over.
    Done,
}

/// All interfaces, followed.
#[derive(Debug)]
pub struct Links {
    socket: OwnedFd,
    room: Vec<u8>,
    by_index: BTreeMap<i32, String>,
    by_name: BTreeMap<String, (i32, LinkState)>,
    /// In bytes, of those in `by_index`.
    mtus: BTreeMap<i32, u32>,
    /// Those that have gone to another namespace, where nothing is heard of them.
    away: BTreeSet<String>,
}

impl Links {
    /// Those there are now; [`Links::hear`] is due whenever the descriptor is readable.
    pub fn open() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
        let room = vec![0; ROOM];
        let mut links = Self {
            socket,
            room,
            by_index: BTreeMap::new(),
            by_name: BTreeMap::new(),
            mtus: BTreeMap::new(),
            away: BTreeSet::new(),
        };
        links.list()?;
        Ok(links)
    }

    /// Names of those that have gone to another namespace, for another program of this process.
    pub fn away(&self) -> &BTreeSet<String> {
        &self.away
    }

    /// These had gone there when the program before of this process was told.
    pub fn resume_away(&mut self, away: BTreeSet<String>) {
        self.away = away;
    }

    /// The state of the interface of this name. One of which we hold a descriptor (`is_held`) is as good in another namespace.
    pub fn state(&self, name: &str, is_held: bool) -> LinkState {
        if name.starts_with('/') {
            // A capture file.
            return LinkState::Up;
        }
        let unseen = if is_held && self.away.contains(name) { LinkState::Up } else { LinkState::Missing };
        self.by_name.get(name).map_or(unseen, |(_, state)| *state)
    }

    /// The number of the interface of this name, if there is one here.
    pub fn index(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).map(|(index, _)| index.unsigned_abs())
    }

    /// The MTU in bytes of the interface of this name, if there is one here.
    pub fn mtu(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).and_then(|(index, _)| self.mtus.get(index)).copied()
    }

    /// Takes what the kernel has said meanwhile.
    pub fn hear(&mut self) {
        for _ in 0..BURST {
            match self.receive() {
                Ok(_) => {}
                // It had more to say than the socket holds: whatever was missed is in the list.
                Err(Errno::NOBUFS) => drop(self.list()),
                Err(_) => return,
            }
        }
    }

    /// Asks for all interfaces. The kernel writes the answer while it is read, so nothing is waited for.
    fn list(&mut self) -> Result<(), Errno> {
        self.by_index.clear();
        self.by_name.clear();
        self.mtus.clear();
        let mut request = Vec::with_capacity(HEADER + INFO);
        request.extend(((HEADER + INFO) as u32).to_ne_bytes());
        request.extend(RTM_GETLINK.to_ne_bytes());
        request.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
        request.resize(HEADER + INFO, 0);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        for _ in 0..LIST_BURST {
            match self.receive() {
                Ok(done) if done => return Ok(()),
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                // All that there was is read.
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes one datagram; true if it ends a list.
    fn receive(&mut self) -> Result<bool, Errno> {
        let (len, _, sender) = recvfrom(&self.socket, &mut self.room[..], RecvFlags::empty())?;
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        // Only the kernel has the number 0; a program that has the right to send to this socket is not believed.
        if sender.is_none_or(|sender| sender.pid() != 0) {
            return Ok(false);
        }
        let mut done = false;
        for said in messages(self.room.get(..len).unwrap_or_default()) {
            match said {
                Said::There { index, name, state, mtu } => {
                    self.is_there(index, name, state);
                    self.mtus.extend(mtu.map(|mtu| (index, mtu)));
                }
                Said::Gone { index, away } => self.is_gone(index, away),
                Said::Done => done = true,
            }
        }
        Ok(done)
    }

    fn is_there(&mut self, index: i32, name: String, state: LinkState) {
        // It may have had another name, and another one this name.
        self.is_gone(index, false);
        self.away.remove(&name);
        self.by_index.insert(index, name.clone());
        self.by_name.insert(name, (index, state));
    }

    fn is_gone(&mut self, index: i32, away: bool) {
        self.mtus.remove(&index);
        if let Some(name) = self.by_index.remove(&index)
            && self.by_name.get(&name).is_some_and(|(i, _)| *i == index)
        {
            self.by_name.remove(&name);
            if away {
                self.away.insert(name);
            }
        }
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The messages of a datagram that say something of interfaces.
fn messages(mut bytes: &[u8]) -> Vec<Said> {
    let mut said = Vec::new();
    while let Some((len, kind)) = word(bytes, 0).map(u32::from_ne_bytes).zip(word(bytes, 4).map(u16::from_ne_bytes)) {
        let len = len as usize;
        let Some(body) = bytes.get(HEADER..len) else { break };
        match kind {
            RTM_NEWLINK | RTM_DELLINK => said.extend(interface(kind, body)),
            NLMSG_DONE => said.push(Said::Done),
            _ => {}
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    said
}

/// What follows the header of a message of an interface.
fn interface(kind: u16, body: &[u8]) -> Option<Said> {
    // A bridge says with the same messages, and its own family, that an interface became or is no longer a port of it.
    if *body.first()? != 0 {
        return None;
    }
    let index = i32::from_ne_bytes(word(body, 4)?);
    let flags = u32::from_ne_bytes(word(body, 8)?);
    if kind == RTM_DELLINK {
        let away = attribute(body.get(INFO..)?, IFLA_NEW_NETNSID).is_some();
        return Some(Said::Gone { index, away });
    }
    let state = match (flags & IFF_UP != 0, flags & IFF_LOWER_UP != 0) {
        (false, _) => LinkState::Down,
        (true, false) => LinkState::NoCarrier,
        (true, true) => LinkState::Up,
    };
    let name = attribute(body.get(INFO..)?, IFLA_IFNAME)?;
    let name = name.split(|b| *b == 0).next()?;
    let mtu = attribute(body.get(INFO..)?, IFLA_MTU).and_then(|value| word(value, 0)).map(u32::from_ne_bytes);
    Some(Said::There { index, name: String::from_utf8_lossy(name).into_owned(), state, mtu })
}

/// The first attribute of this type.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(word(bytes, 0)?));
        let kind = u16::from_ne_bytes(word(bytes, 2)?);
        let value = bytes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of the interface, with an attribute before its name.
    fn message(kind: u16, family: u8, index: i32, flags: u32, name: &str) -> Vec<u8> {
        let mut body = vec![family, 0, 1, 0];
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend([0; 4]);
        let (named, mtu) = ([name.as_bytes(), &[0]].concat(), 1400u32.to_ne_bytes());
        for (kind, value) in [(1u16, &[1, 2, 3, 4, 5, 6][..]), (IFLA_IFNAME, &named[..]), (IFLA_MTU, &mtu[..])] {
            body.extend((value.len() as u16 + 4).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut message = (body.len() as u32 + 16).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    #[test]
    fn what_the_kernel_says_of_interfaces() {
        let both = IFF_UP | IFF_LOWER_UP;
        let datagram = [
            message(RTM_NEWLINK, 0, 2, both, "eth0"),
            message(RTM_NEWLINK, 0, 3, IFF_UP, "eth10"),
            message(RTM_NEWLINK, 0, 4, IFF_LOWER_UP, "e"),
            // A port leaves its bridge, and stays.
            message(RTM_DELLINK, 7, 2, both, "eth0"),
            message(RTM_DELLINK, 0, 9, 0, "gone"),
            message(NLMSG_DONE, 0, 0, 0, ""),
        ]
        .concat();
        let there = |index, name: &str, state| Said::There { index, name: name.into(), state, mtu: Some(1400) };
        let expected = [
            there(2, "eth0", LinkState::Up),
            there(3, "eth10", LinkState::NoCarrier),
            there(4, "e", LinkState::Down),
            Said::Gone { index: 9, away: false },
            Said::Done,
        ];
        assert_eq!(messages(&datagram), expected);
        // Cut off anywhere, or with any length written anywhere, it says less or something else, and nothing worse.
        for len in 0..datagram.len() {
            assert!(messages(&datagram[..len]).len() <= expected.len());
        }
        for at in 0..datagram.len() - 4 {
            for len in [0, 1, 3, 4, 15, 16, 17, u32::MAX, u32::MAX - 3] {
                let mut broken = datagram.clone();
                broken[at..at + 4].copy_from_slice(&len.to_ne_bytes());
                let _ = messages(&broken);
            }
        }
    }

    #[test]
    fn names_move_between_interfaces() {
        let mut links = Links::open().unwrap();
        assert_ne!(links.state("lo", false), LinkState::Missing, "every namespace has a loopback");
        assert!(links.mtu("lo").is_some() && links.mtu("no such").is_none());
        links.is_there(700_001, "a-name".into(), LinkState::Up);
        links.is_there(700_002, "b-name".into(), LinkState::Down);
        // The two change names, by way of a third.
        links.is_there(700_001, "c-name".into(), LinkState::Up);
        links.is_there(700_002, "a-name".into(), LinkState::Down);
        links.is_there(700_001, "b-name".into(), LinkState::Up);
        let states = ["a-name", "b-name", "c-name"].map(|name| links.state(name, true));
        assert_eq!(states, [LinkState::Down, LinkState::Up, LinkState::Missing]);
        links.is_gone(700_002, false);
        assert_eq!(links.state("a-name", true), LinkState::Missing);
        links.is_gone(700_001, true);
        let states = [true, false].map(|is_held| links.state("b-name", is_held));
        assert_eq!(states, [LinkState::Up, LinkState::Missing], "it is in another namespace");
        links.is_there(700_003, "b-name".into(), LinkState::Down);
        assert_eq!(links.state("b-name", true), LinkState::Down, "another one here");
        links.is_gone(700_003, false);
        links.hear();
        links.list().unwrap();
        assert_eq!(links.state("b-name", true), LinkState::Missing, "the kernel has no such interface");
    }
}
