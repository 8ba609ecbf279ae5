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
            Err(Errno::EXIST) => Ok(()),
            result => result,
        }
    }

    /// Adds a rule. `EXIST`: one that matches the same is there.
    pub fn put(&mut self, place: Place, rule: &Rule, policy: Policy) -> Result<(), Errno> {
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
        self.ask(request, |_| {})
    }

    /// Removes a rule, or all of a priority; what it has carried, if there was one. No packet meets it afterwards.
    pub fn delete(&mut self, place: Place) -> Result<Option<Statistics>, Errno> {
        let request = Request::new(RTM_DELTFILTER, REQUEST | ACK | ECHO).raw(&place.tcmsg());
        let request = request.with(TCA_KIND, crate::rule::FLOWER);
        let mut carried = None;
        match self.ask(request, |said| carried = carried.or(Some(said))) {
            // There is none: of this number; of this priority, or no place for rules; no such interface.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL | Errno::NODEV) => Ok(carried),
            Err(e) => Err(e),
        }
    }

    /// What the flows' rules of an interface have carried.
    pub fn statistics(&mut self, device: u32, mut each: impl FnMut(Statistics)) -> Result<(), Errno> {
        let request = Request::new(RTM_GETTFILTER, REQUEST | DUMP).raw(&tcmsg(device, 0, INGRESS, 0));
        self.ask(request, |said| {
            if said.place.handle != 0 && Place::of_flows(device).any(|of| of.priority == said.place.priority) {
                each(said);
            }
        })
    }

    /// Sends a request and takes all that the kernel answers.
    fn ask(&mut self, request: Request, mut each: impl FnMut(Statistics)) -> Result<(), Errno> {
        self.number = self.number.wrapping_add(1);
        let request = request.finish(self.number);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        loop {
            let (len, _, sender) = recvfrom(&self.socket, &mut self.room[..], RecvFlags::empty())?;
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
                            error => Err(Errno::from_raw_os_error(error.saturating_neg())),
                        };
                    }
                    RTM_NEWTFILTER | RTM_DELTFILTER => read(body).into_iter().for_each(&mut each),
                    _ => {}
                }
            }
        }
    }
}
