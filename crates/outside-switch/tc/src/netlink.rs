//! A socket of rtnetlink(7). The kernel does what it is asked, and answers, before sendto(2) returns, so nothing is waited for.

use crate::message::{Heard, Request, messages, word};
use crate::rule::{CLSACT, CLSACT_HANDLE, INGRESS, Place, Policy, Rule, TCA_KIND, tcmsg, write_rest};
use crate::said::{Statistics, read};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, sendto, socket_with};
use std::os::fd::OwnedFd;

/// linux/rtnetlink.h, linux/netlink.h.
const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const ECHO: u16 = 8;
const DUMP: u16 = 0x300;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;

/// The kernel's messages are shorter.
const ROOM: usize = 64 * 1024;

/// Why a request was not fulfilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The kernel says that it does not: nothing has changed.
    Refused(Errno),
    /// The request, or the answer, was lost at this side of the socket: the kernel may have done it.
    Unknown(Errno),
}

impl From<Failed> for Errno {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused(e) | Failed::Unknown(e) => e,
        }
    }
}

/// The socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    number: u32,
    room: Vec<u8>,
}

impl Netlink {
    /// Of this network namespace. What is asked for needs CAP_NET_ADMIN, now and when it is asked.
    pub fn open() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self { socket, number: 0, room: vec![0; ROOM] })
    }

    /// Makes the place for rules at an interface, if there is none.
    pub fn make_place(&mut self, device: u32) -> Result<(), Errno> {
        let request = Request::new(RTM_NEWQDISC, REQUEST | ACK | CREATE | EXCL);
        let request = request.raw(&tcmsg(device, CLSACT_HANDLE, CLSACT, 0)).with(TCA_KIND, b"clsact\0");
        match self.ask(request, |_| {}) {
            Err(Failed::Refused(Errno::EXIST)) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Adds a rule. `EXIST`: one that matches the same is there.
    pub fn put(&mut self, place: Place, rule: &Rule, policy: Policy) -> Result<(), Failed> {
        let mut request = Request::new(RTM_NEWTFILTER, REQUEST | ACK | CREATE | EXCL).raw(&place.tcmsg());
        rule.write(&mut request, policy);
        self.ask(request, |_| {})
    }

    /// All that no rule takes at one interface leaves by another, instead of what was said of it before.
    pub fn put_rest(&mut self, from: u32, to: u32) -> Result<(), Errno> {
        let place = Place::of_rest(from);
        self.delete(Place { handle: 0, ..place })?;
        let mut request = Request::new(RTM_NEWTFILTER, REQUEST | ACK | CREATE | EXCL).raw(&place.tcmsg());
        write_rest(&mut request, to);
        Ok(self.ask(request, |_| {})?)
    }

    /// Removes a rule, or all of a priority; what it has carried, if there was one. No packet meets it afterwards.
    pub fn delete(&mut self, place: Place) -> Result<Option<Statistics>, Errno> {
        let request = Request::new(RTM_DELTFILTER, REQUEST | ACK | ECHO).raw(&place.tcmsg());
        let request = request.with(TCA_KIND, crate::rule::FLOWER);
        let mut carried = None;
        match self.ask(request, |said| carried = carried.or(Some(said))) {
            // There is none: of this number; of this priority, or no place for rules; no such interface.
            Ok(()) | Err(Failed::Refused(Errno::NOENT | Errno::INVAL | Errno::NODEV)) => Ok(carried),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes all rules of flows at an interface, whoever made them.
    pub fn clear_flows(&mut self, device: u32) -> Result<(), Errno> {
        Place::of_flows(device).try_for_each(|place| self.delete(place).map(drop))
    }

    /// Removes whatever rule of ours there is at an interface: what it receives goes to the host's own stack then.
    pub fn leave(&mut self, device: u32) -> Result<(), Errno> {
        self.clear_flows(device)?;
        self.delete(Place { handle: 0, ..Place::of_rest(device) }).map(drop)
    }

    /// What the flows' rules of an interface have carried.
    pub fn statistics(&mut self, device: u32, mut each: impl FnMut(Statistics)) -> Result<(), Errno> {
        let request = Request::new(RTM_GETTFILTER, REQUEST | DUMP).raw(&tcmsg(device, 0, INGRESS, 0));
        Ok(self.ask(request, |said| {
            if said.place.handle != 0 && Place::of_flows(device).any(|of| of.priority == said.place.priority) {
                each(said);
            }
        })?)
    }

    /// Sends a request and takes all that the kernel answers.
    fn ask(&mut self, request: Request, mut each: impl FnMut(Statistics)) -> Result<(), Failed> {
        self.number = self.number.wrapping_add(1);
        let request = request.finish(self.number);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).map_err(Failed::Unknown)?;
        loop {
            let received = recvfrom(&self.socket, &mut self.room[..], RecvFlags::empty());
            let (len, _, sender) = received.map_err(Failed::Unknown)?;
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            // Only the kernel has the number 0; a program that has the right to send to this socket is not believed.
            if sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            for Heard { kind, number, body } in messages(self.room.get(..len).unwrap_or_default()) {
                match kind {
                    // Of a request before, whose answer was not taken to its end.
                    _ if number != self.number => {}
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        return match word(body, 0).unwrap_or(0).cast_signed() {
                            0 => Ok(()),
                            error => Err(Failed::Refused(Errno::from_raw_os_error(error.saturating_neg()))),
                        };
                    }
                    RTM_NEWTFILTER | RTM_DELTFILTER => read(body).into_iter().for_each(&mut each),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Act, Match};

    #[test]
    fn what_the_kernel_refuses_is_another_thing_than_what_is_lost() {
        let rule = Rule { matches: Match { ethertype: 0x0800, ..Match::default() }, acts: vec![Act::Redirect(1)] };
        // No interface has this number.
        let place = Place { device: i32::MAX.cast_unsigned(), priority: 1, protocol: 0x0800, handle: 1 };
        let mut netlink = Netlink::open().unwrap();
        let refused = netlink.put(place, &rule, Policy::SkipHw);
        assert!(matches!(refused, Err(Failed::Refused(_))), "{refused:?}");
        // Nor does this socket lead to the kernel.
        netlink.socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let lost = netlink.put(place, &rule, Policy::SkipHw);
        assert!(matches!(lost, Err(Failed::Unknown(_))), "{lost:?}");
        assert!(netlink.delete(place).is_err(), "nor is it known to be gone");
    }
}
