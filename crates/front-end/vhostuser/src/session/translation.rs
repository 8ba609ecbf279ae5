//! Addresses that the guest's own IOMMU translates: what the front-end says of them, and what it is asked.

use super::*;
use crate::iotlb::{Question, Range};
use crate::message::{BACKEND_IOTLB_MSG, HEADER_LEN, Header, IotlbMessage, iotlb};
use lasthop_guestmem::translations::PAGES;
use lasthop_sys::send_with_fds;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};
use std::collections::VecDeque;
use std::time::Duration;
use zerocopy::FromBytes;

/// Bytes of an answer: a header and a number.
const ANSWER_LEN: usize = HEADER_LEN + 8;

/// Most questions that the front-end has at a time, if it answers: a more urgent one may come.
const MOST_SENT: usize = 16;
/// Of pages that are told while more are asked for, the switch is woken for so many together, and this long after the first at the latest:
/// looking at its rings costs it more than a page costs here.
const MOST_UNWOKEN: u8 = 8;
const WOKEN_WITHIN: Duration = Duration::from_micros(200);
/// So often a guest is heard to fill a ring after it has started, or gone on: what the switch does then nobody pays for.
const MOST_FILLS: u8 = 8;

/// The front-end's socket for the back-end's requests.
#[derive(Debug)]
pub(super) struct Requests {
    socket: Foreign,
    answer: [u8; ANSWER_LEN],
    filled: usize,
    /// Pages whose answers are to come, in this order.
    sent: VecDeque<u64>,
}

impl<S: Switch> Session<S> {
    /// How many ranges of I/O addresses are remembered, in this connection: of more those that nobody wanted for longest are forgotten, and
    /// asked for again.
    pub fn set_grants(&mut self, grants: usize) {
        self.grants = grants.max(1);
        if let Some(table) = &mut self.iotlb {
            table.set_most(self.grants);
        }
    }

    /// SET_BACKEND_REQ_FD.
    pub(super) fn set_requests(&mut self, socket: Foreign) -> Result<(), Fault> {
        // Asked of the descriptor, not of a file system.
        rustix::net::sockopt::socket_type(&socket).map_err(|_| Refusal::NoSocket)?;
        self.retire_requests();
        self.requests = Some(Requests { socket, answer: [0; ANSWER_LEN], filled: 0, sent: VecDeque::new() });
        if let Err(fault) = self.translate() {
            self.retire_requests();
            return Err(fault);
        }
        // What was asked over the one before is asked again.
        if let Some(iotlb) = &mut self.iotlb {
            iotlb.asked().values_mut().for_each(|question| question.sent = false);
        }
        self.send_questions();
        Ok(())
    }

    fn retire_requests(&mut self) {
        self.retired.get_or_insert_default().extend(self.requests.take().map(|requests| requests.socket));
    }

    /// If the descriptors of [`Session::translation_fds`] are others than when this was asked before: those that have gone, which are still
    /// watched.
    pub fn take_retired(&mut self) -> Option<Vec<Foreign>> {
        self.retired.take()
    }

    /// To be watched level-triggered: what the switch signals ([`Session::misses`]), and where the front-end answers
    /// ([`Session::answers`]).
    pub fn translation_fds(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let doorbell = self.iotlb.as_ref().map(|iotlb| iotlb.doorbell.as_fd());
        (doorbell, self.requests.as_ref().map(|requests| requests.socket.as_fd()))
    }

    /// Where guests say that they have filled rings that packets go to, with the rings' numbers. To be watched edge-triggered while
    /// [`Session::translates`], for [`Session::filled`].
    pub fn fills(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.rings.iter().enumerate().step_by(2).filter_map(|(i, ring)| Some((i, ring.kick.as_ref()?.as_fd())))
    }

    /// Whether addresses are I/O addresses.
    pub fn translates(&self) -> bool {
        self.iotlb.is_some()
    }

    /// The guest may have put the first buffers into a ring that packets go to. The switch looks at them when a packet comes, and has their
    /// pages asked for before that if it looks up the ring anew.
    pub fn filled(&mut self, i: usize) -> Result<(), SessionError> {
        let runs = |ring: &Ring| ring.state == RingState::Running && !ring.resting && ring.fills < MOST_FILLS;
        let heard = self.rings.get(i).is_some_and(runs) && self.translates() && matches!(self.setup(i), Ok(Some(_)));
        if heard {
            self.rings[i].fills += 1;
            self.try_resume(i).map_err(|_| SessionError::SwitchGone)?;
        }
        self.tell_of_changes()
    }

    /// Addresses are I/O addresses if ACCESS_PLATFORM was negotiated and there is somebody to ask, or was: a front-end that has closed its socket for
    /// questions gives nothing more, and what it takes back is still taken back. Without, they are the guest's: an IOMMU that does not translate, or bounce
    /// buffers of a confidential VM. While a ring runs they stay what they are.
    pub(super) fn translate(&mut self) -> Result<(), Fault> {
        let somebody = self.requests.is_some() || self.iotlb.is_some();
        let wanted = self.features.contains(Features::ACCESS_PLATFORM) && somebody;
        if wanted == self.iotlb.is_some() {
            return Ok(());
        }
        for i in 0..self.rings.len() {
            if self.is_running(i)? {
                return Ok(());
            }
        }
        let (mut table, mut fds) = (None, Vec::new());
        let aside = self.transport.aside().clone();
        if wanted {
            let made = Iotlb::new(self.grants).and_then(|iotlb| Ok((iotlb.descriptors()?, iotlb)));
            let (both, iotlb) = made.map_err(|e| Refusal::Switch(format!("no table of translations: {e}")))?;
            fds.extend(both.map(|fd| Foreign::new(fd, &aside)));
            table = Some(iotlb);
        }
        self.ask_for(Ask::Translate, fds)?;
        let before = std::mem::replace(&mut self.iotlb, table);
        self.retired.get_or_insert_default().extend(before.map(|iotlb| Foreign::new(iotlb.doorbell.into(), &aside)));
        self.start_rings()
    }

    /// IOTLB_MSG.
    pub(super) fn iotlb_message(&mut self, message: IotlbMessage) -> Result<(), Fault> {
        let IotlbMessage { iova, size, user_addr, permissions, kind, .. } = message;
        let Some(table) = &mut self.iotlb else {
            // QEMU tells of what is taken away as soon as there is a device, before its driver has negotiated anything.
            let harmless = matches!(kind, iotlb::INVALIDATE | iotlb::UPDATE);
            return if harmless { Ok(()) } else { Err(Refusal::NoTranslation.into()) };
        };
        match kind {
            iotlb::UPDATE => {
                let whole = iova % PAGE == 0 && size % PAGE == 0 && size > 0;
                let (first, last) = Iotlb::pages(iova, size);
                if !whole || iova.checked_add(size).is_none() || last >= PAGES {
                    return Err(Refusal::IotlbRange { iova, size }.into());
                }
                let target = Refusal::IotlbTarget { user_addr, size };
                let guest = self.regions.range_to_guest(user_addr, size).filter(|guest| guest % PAGE == 0);
                let guest = guest.filter(|guest| guest / PAGE + (last - first) < PAGES - 2).ok_or(target)? / PAGE;
                let permissions = u64::from(permissions) & (READ | WRITE);
                let replaced = table.update(Range { first, last, guest, user: user_addr, permissions });
                if replaced {
                    self.revoked(first, last)?;
                }
                self.answered(first, last, replaced)
            }
            iotlb::INVALIDATE => {
                let (first, last) = Iotlb::pages(iova, size);
                table.counts.invalidations += 1;
                table.forget(first, last);
                table.write_counts();
                self.revoked(first, last)
            }
            // Each takes effect at once: a batch spares nothing.
            iotlb::BATCH_BEGIN | iotlb::BATCH_END => Ok(()),
            _ => Err(Refusal::Iotlb(kind).into()),
        }
    }

    /// Pages have been taken away. When this returns the switch reads and writes nothing there any more, not even rings.
    fn revoked(&mut self, first: u64, last: u64) -> Result<(), Fault> {
        let mut resting = Vec::new();
        for i in 0..self.rings.len() {
            let runs = self.rings[i].state == RingState::Running && !self.rings[i].resting;
            if runs && self.parts(i).iter().any(|part| part.0 <= last && part.1 >= first) {
                self.rings[i].resting = true;
                resting.push(i);
                self.ask(Ask::Ring(i as u16, RingAsk::Rest), None)?;
            }
        }
        let rings = self.rings.len();
        if self.iotlb.as_mut().is_some_and(|table| std::mem::take(&mut table.removed) && !table.is_idle(rings)) {
            self.ask(Ask::Revoked, None)?;
        }
        resting.into_iter().try_for_each(|i| self.ask_for_ring(i))
    }

    /// The front-end has told of pages, some of which were others before: who waits for them goes on.
    fn answered(&mut self, first: u64, last: u64, mut replaced: bool) -> Result<(), Fault> {
        let Some(table) = &mut self.iotlb else { return Ok(()) };
        let asked: Vec<_> =
            table.asked().range(first..=last).map(|(page, question)| (*page, question.wanted)).collect();
        for (page, wanted) in asked {
            if table.show_page(page, wanted) {
                table.answered(page);
                replaced = true;
            }
        }
        if !replaced {
            return Ok(());
        }
        let waits = !table.asked().is_empty();
        self.start_rings()?;
        let (unwoken, due) = &mut self.unwoken;
        *unwoken += 1;
        if waits && *unwoken < MOST_UNWOKEN {
            due.get_or_insert_with(|| Instant::now() + WOKEN_WITHIN);
            return Ok(());
        }
        self.wake()
    }

    /// Rings whose memory is known now start or go on.
    fn start_rings(&mut self) -> Result<(), Fault> {
        for i in 0..self.rings.len() {
            match self.rings[i].state {
                RingState::Waiting => self.try_start(i)?,
                RingState::Running if self.rings[i].resting => self.try_resume(i)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A ring that rests goes on if it can be found again.
    fn try_resume(&mut self, i: usize) -> Result<(), Fault> {
        match self.setup(i) {
            Ok(Some(_)) => {}
            Ok(None) => return self.ask_for_ring(i),
            Err(unfit) => return self.fail(i, unfit),
        }
        self.show_ring(i);
        if std::mem::take(&mut self.rings[i].resting) {
            self.rings[i].fills = 0;
        }
        if !matches!(self.ask(Ask::Ring(i as u16, RingAsk::Move), None)?, Answer::Done) {
            (self.rings[i].state, self.rings[i].setup) = (RingState::Failed, None);
            self.changed = true;
        }
        Ok(())
    }

    /// Has the switch look at rings that packets come from: one may wait for a page. As if the guest had kicked; where it never does, the
    /// switch looks when it hears from us.
    pub(super) fn wake(&mut self) -> Result<(), Fault> {
        self.unwoken = (0, None);
        for ring in self.rings.iter().skip(1).step_by(2).filter(|ring| ring.state == RingState::Running) {
            match &ring.wake {
                // Never by write(2): its front-end may have filled the counter, and have cleared O_NONBLOCK.
                Some(kick) => kick.signal(),
                None => self.changed = true,
            }
        }
        Ok(())
    }

    /// The switch has signalled: it wants pages.
    pub fn misses(&mut self) -> Result<(), SessionError> {
        let lost = |_| SessionError::SwitchGone;
        let Some(table) = &mut self.iotlb else { return Ok(()) };
        table.doorbell.drain();
        let mut wakes = false;
        for (page, wanted) in table.questions() {
            if table.show_page(page, wanted) {
                table.answered(page);
                wakes = true;
            } else {
                table.ask(page, wanted, false);
            }
        }
        if wakes {
            self.start_rings().and_then(|()| self.wake()).map_err(lost)?;
        }
        self.send_questions();
        self.tell_of_changes()
    }

    /// The front-end has answered questions, or makes room for more.
    pub fn answers(&mut self) -> Result<(), SessionError> {
        let Some(requests) = &mut self.requests else { return Ok(()) };
        let mut refused = Vec::new();
        loop {
            let room = requests.answer.get_mut(requests.filled..).unwrap_or(&mut []);
            match recv(&requests.socket, room, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => break,
                Ok((0, _)) | Err(_) => {
                    // It asks for nothing more, and gives nothing more.
                    self.retire_requests();
                    break;
                }
                Ok((bytes, _)) => requests.filled += bytes,
            }
            if requests.filled == ANSWER_LEN {
                requests.filled = 0;
                let (header, result) = requests.answer.split_at(HEADER_LEN);
                let header = Header::read_from_bytes(header).map_err(|_| SessionError::BackendChannel)?;
                let known = (header.request, header.size) == (BACKEND_IOTLB_MSG, 8) && header.flags & flag::REPLY != 0;
                let page = requests.sent.pop_front().filter(|_| known).ok_or(SessionError::BackendChannel)?;
                if result.iter().any(|byte| *byte != 0) {
                    refused.push(page);
                }
            }
        }
        self.refused_pages(&refused).map_err(|_| SessionError::SwitchGone)?;
        self.send_questions();
        self.tell_of_changes()
    }

    /// The front-end says that the guest has granted no such pages, not for that use.
    fn refused_pages(&mut self, pages: &[u64]) -> Result<(), Fault> {
        let Some(table) = self.iotlb.as_mut().filter(|_| !pages.is_empty()) else { return Ok(()) };
        for page in pages {
            if let Some(Question { wanted, .. }) = table.asked().get(page).copied() {
                table.refuse(*page, wanted);
                table.answered(*page);
            }
        }
        for i in 0..self.rings.len() {
            let parts = self.parts(i);
            let lies_in = |page: u64| parts.iter().any(|(first, last)| page >= *first && page <= *last);
            let Some(page) = pages.iter().copied().find(|page| lies_in(*page)) else { continue };
            if self.rings[i].state == RingState::Waiting || self.rings[i].resting {
                let address = page * PAGE;
                let why =
                    format!("the guest's IOMMU grants no access to I/O address {address:#x}, where the ring lies");
                self.fail(i, Unfit { address, why })?;
            }
        }
        self.wake()
    }

    /// Asks for the pages of a ring that cannot be found.
    pub(super) fn ask_for_ring(&mut self, i: usize) -> Result<(), Fault> {
        let parts = self.parts(i);
        if let Some(table) = &mut self.iotlb {
            for page in parts.iter().flat_map(|(first, last)| *first..=*last) {
                if !table.covers((page, page), READ | WRITE) {
                    table.ask(page, READ | WRITE, true);
                }
            }
            self.send_questions();
        }
        Ok(())
    }

    /// Puts the pages of a ring into the table, where the switch looks for them once.
    pub(super) fn show_ring(&mut self, i: usize) {
        let parts = self.parts(i);
        if let Some(table) = &mut self.iotlb {
            for page in parts.iter().flat_map(|(first, last)| *first..=*last) {
                table.show_page(page, READ | WRITE);
            }
        }
    }

    /// Before the switch looks up all rings anew, but for those that rest: pages of some may have had to go in the table for others. A ring
    /// whose pages are not remembered either rests until they are told again.
    pub(super) fn show_rings(&mut self) -> Result<(), Fault> {
        for i in 0..self.rings.len() {
            if !self.translates() || self.rings[i].state != RingState::Running || self.rings[i].resting {
                continue;
            }
            if matches!(self.setup(i), Ok(Some(_))) {
                self.show_ring(i);
            } else {
                self.rings[i].resting = true;
                self.ask(Ask::Ring(i as u16, RingAsk::Rest), None)?;
                self.ask_for_ring(i)?;
            }
        }
        Ok(())
    }

    /// The parts of a ring: first and last page. A ring that was not described has none.
    pub(super) fn parts(&self, i: usize) -> Vec<(u64, u64)> {
        let ring = &self.rings[i];
        let Some(addr) = ring.addr.filter(|_| ring.size != 0) else { return Vec::new() };
        let n = u64::from(ring.size);
        let (driver, device) = if self.packed() { (4, 4) } else { (6 + 2 * n, 6 + 8 * n) };
        let parts = [(addr.descriptor, 16 * n), (addr.available, driver), (addr.used, device)];
        // What lies beyond the end of addresses is refused by the switch.
        let pages = |(addr, len): (u64, u64)| {
            (addr / PAGE, addr.saturating_add(len - 1).min(addr.saturating_add(1 << 20)) / PAGE)
        };
        parts.into_iter().map(pages).collect()
    }

    /// Memory regions have come, gone or moved: what was said of others is no longer true.
    pub(super) fn regions_changed(&mut self) -> Result<(), Fault> {
        let Some(table) = &mut self.iotlb else { return Ok(()) };
        let stale = |range: &Range| {
            let size = (range.last - range.first + 1) * PAGE;
            self.regions.range_to_guest(range.user, size) != Some(range.guest * PAGE)
        };
        let gone: Vec<_> = table.ranges().filter(stale).collect();
        for range in gone {
            if let Some(table) = &mut self.iotlb {
                table.forget(range.first, range.last);
            }
            self.revoked(range.first, range.last)?;
        }
        Ok(())
    }

    /// Sends the questions that are not sent yet, as far as there is room: the front-end reads them when it likes.
    fn send_questions(&mut self) {
        let acks = self.protocol_features.contains(ProtocolFeatures::REPLY_ACK);
        let (Some(table), Some(requests)) = (&mut self.iotlb, &mut self.requests) else { return };
        let flags = flag::VERSION | if acks { flag::NEED_REPLY } else { 0 };
        while requests.sent.len() < MOST_SENT
            && let Some((page, question)) = table.next_question()
        {
            let header = Header { request: BACKEND_IOTLB_MSG, flags, size: size_of::<IotlbMessage>() as u32 };
            let (permissions, kind) = (question.wanted as u8, iotlb::MISS);
            let body = IotlbMessage { iova: page * PAGE, size: PAGE, permissions, kind, ..Default::default() };
            let bytes = [header.as_bytes(), body.as_bytes()].concat();
            match send_with_fds(&requests.socket, &bytes, &[], SendFlags::DONTWAIT) {
                Ok(sent) if sent == bytes.len() => {
                    question.sent = true;
                    if acks {
                        requests.sent.push_back(page);
                    }
                }
                // It reads nothing: its rings wait, and it is asked when something else comes.
                _ => break,
            }
        }
    }
}
