//! What each request means.

use super::*;
use crate::rarp::rarp;
use lasthop_sys::{Aside, PeerEvent};
use std::sync::Arc;

impl<S: Switch> Session<S> {
    /// Carries out one request: first its form is judged, then what it means.
    pub(super) fn command(&mut self, form: Form) -> Result<Reply, Fault> {
        if BARE.contains(&form.request) {
            form.empty()?;
        }
        self.device_command(form)
    }

    /// Requests about the device as a whole.
    fn device_command(&mut self, mut form: Form) -> Result<Reply, Fault> {
        use Request as R;
        match form.request {
            R::GetFeatures => return Ok(number(Features::OFFERED.bits())),
            R::SetFeatures => self.set_features(form.exactly()?)?,
            // It marks the start of a session; QEMU and virtio-user send it more than once.
            R::SetOwner => {}
            R::ResetOwner => self.reset()?,
            R::GetProtocolFeatures => return Ok(number(ProtocolFeatures::OFFERED.bits())),
            R::SetProtocolFeatures => {
                let bits: u64 = form.exactly()?;
                let unoffered = bits & !ProtocolFeatures::OFFERED.bits();
                if unoffered != 0 {
                    return Err(Refusal::ProtocolFeatures(unoffered).into());
                }
                self.protocol_features = ProtocolFeatures::from_bits_truncate(bits);
                self.changed = true;
            }
            // virtio-user asks before it accepts MQ. Pairs, as network front-ends count.
            R::GetQueueNum => return Ok(number((self.rings.len() / 2) as u64)),
            R::SendRarp => {
                let [mac @ .., _, _] = form.exactly::<[u8; 8]>()?;
                self.needs(ProtocolFeatures::RARP)?;
                let mac = MacAddr(mac);
                if !mac.is_unicast_source() {
                    return Err(Refusal::Address(mac).into());
                }
                self.ask(Ask::Announce(rarp(mac).to_vec()), None)?;
            }
            R::NetSetMtu => {
                let mtu: u64 = form.exactly()?;
                self.needs(ProtocolFeatures::NET_MTU)?;
                let small = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MIN_MTU);
                let mtu = small.ok_or(Refusal::Mtu(mtu))?;
                self.ask(Ask::Mtu(mtu), None)?;
                self.mtu = Some(mtu);
            }
            R::SetBackendReqFd => {
                let (_, socket) = form.with_fd::<[u8; 0]>()?;
                self.needs(ProtocolFeatures::BACKEND_REQ)?;
                self.set_requests(socket)?;
            }
            R::IotlbMsg => self.iotlb_message(form.exactly()?)?,
            R::ResetDevice => {
                self.needs(ProtocolFeatures::RESET_DEVICE)?;
                self.reset()?;
                self.features = Features::empty();
                self.translate()?;
                self.log_or_not()?;
                self.status = 0;
            }
            R::SetStatus => {
                let value: u64 = form.exactly()?;
                self.needs(ProtocolFeatures::STATUS)?;
                self.status = u8::try_from(value).map_err(|_| Refusal::Status(value))?;
                if self.status == 0 {
                    // The guest has reset its device. Enabled or not is the front-end's to say again.
                    (0..self.rings.len()).try_for_each(|i| self.stop(i))?;
                }
                self.changed = true;
            }
            R::GetStatus => {
                self.needs(ProtocolFeatures::STATUS)?;
                return Ok(number(self.status.into()));
            }
            _ => return self.ring_command(form),
        }
        Ok(None)
    }

    /// Requests about one ring.
    fn ring_command(&mut self, form: Form) -> Result<Reply, Fault> {
        use Request as R;
        match form.request {
            R::SetVringNum => {
                let (i, size) = self.ring(&form)?;
                // Whether it must be a power of two is known when the ring starts.
                let small = u16::try_from(size).ok().filter(|size| (1..=MAX_RING).contains(size));
                let size = small.ok_or(Refusal::RingSize(size))?;
                if size > self.max_ring {
                    return Err(Refusal::RingBound { size, most: self.max_ring }.into());
                }
                self.configure(i, self.rings[i].size != size, |ring| ring.size = size)?;
            }
            R::SetVringAddr => {
                let addr: VringAddr = form.exactly()?;
                if addr.flags & !VRING_LOG != 0 {
                    return Err(form.wrong(addr.flags.into()).into());
                }
                let addr = VringAddr { flags: 0, log: 0, ..addr };
                let i = self.index(addr.index)?;
                self.configure(i, self.rings[i].addr != Some(addr), |ring| ring.addr = Some(addr))?;
            }
            R::SetVringBase => {
                let (i, base) = self.ring(&form)?;
                self.configure(i, self.rings[i].base != base, |ring| ring.base = base)?;
            }
            R::GetVringBase => {
                let (i, _) = self.ring(&form)?;
                self.stop(i)?;
                return Ok(Some(([i as u32, self.rings[i].base].as_bytes().to_vec(), None)));
            }
            R::SetVringKick => {
                let (i, fd) = self.ring_fd(form)?;
                let kick = self.pass_on(Ask::Ring(i as u16, RingAsk::Kick), fd)?;
                // The switch has taken it, so it is an eventfd. What it refuses is not used here either: to watch another file, or to write
                // to it, may take as long as whoever serves it likes.
                if i % 2 == 0 {
                    let before = std::mem::replace(&mut self.rings[i].kick, kick);
                    self.retired.get_or_insert_default().extend(before);
                } else {
                    self.rings[i].wake = kick.and_then(|kick| PeerEvent::new(kick).ok());
                }
                if !self.is_running(i)? {
                    self.rings[i].state = RingState::Waiting;
                }
                self.try_start(i)?;
                self.changed = true;
            }
            R::SetVringCall => {
                let (i, fd) = self.ring_fd(form)?;
                self.rings[i].call = self.pass_on(Ask::Ring(i as u16, RingAsk::Call), fd)?;
            }
            R::SetVringErr => {
                let (i, fd) = self.ring_fd(form)?;
                self.rings[i].err = self.pass_on(Ask::Ring(i as u16, RingAsk::Err), fd)?;
            }
            R::SetVringEnable => {
                // QEMU enables rings before SET_FEATURES when it reconnects.
                let (index, enabled) = form.state()?;
                if enabled > 1 {
                    return Err(form.wrong(enabled.into()).into());
                }
                let i = self.index(index)?;
                self.enable(i, enabled == 1)?;
            }
            _ => return self.memory_command(form),
        }
        Ok(None)
    }

    /// A copy of what is passed on to the switch, to tell another one of it.
    fn keep(&mut self, fd: Option<&Foreign>) -> Option<Foreign> {
        let copy = copy(fd?, self.transport.aside());
        self.unkept |= copy.is_none();
        copy
    }

    /// Passes it on, if there is one, and keeps a copy of what is taken.
    fn pass_on(&mut self, ask: Ask, fd: Option<Foreign>) -> Result<Option<Foreign>, Fault> {
        let copy = self.keep(fd.as_ref());
        self.ask_for(ask, fd)?;
        Ok(copy)
    }

    /// Requests about memory that is shared.
    fn memory_command(&mut self, mut form: Form) -> Result<Reply, Fault> {
        use Request as R;
        match form.request {
            R::SetMemTable => {
                let (table, fds): (Vec<_>, _) = form.table()?.into_iter().unzip();
                let regions = table.iter().map(words).collect();
                let files = table.iter().zip(&fds).filter_map(|(region, fd)| Some((*region, self.keep(Some(fd))?)));
                let files = files.collect();
                self.set_memory(Regions::new(table), |keep| Ask::Table { regions, keep }, fds)?;
                self.files = files;
                self.repeated.clear();
            }
            R::SetLogBase => return self.set_log(form),
            // Nobody is waked: a front-end looks at the log when it likes.
            R::SetLogFd => drop(form.with_fd::<[u8; 0]>()?),
            R::GetInflightFd => {
                let (desc, _) = form.inflight(false)?;
                self.needs(ProtocolFeatures::INFLIGHT_SHMFD)?;
                let made = inflight::create(&desc, self.rings.len(), self.packed());
                let (desc, fd) = made.map_err(Refusal::Inflight)?;
                return Ok(Some((desc.as_bytes()[..form.body.len()].to_vec(), Some(fd))));
            }
            R::SetInflightFd => {
                let (desc, fd) = form.inflight(true)?;
                self.needs(ProtocolFeatures::INFLIGHT_SHMFD)?;
                let fd = fd.ok_or_else(|| form.wrong(0))?;
                let adopted = Inflight::adopt(&desc, fd, self.rings.len(), self.packed());
                let before = self.inflight.replace(adopted.map_err(Refusal::Inflight)?);
                self.transport.aside().unmap_aside(before);
            }
            R::GetMaxMemSlots => {
                self.needs(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                return Ok(number(MAX_REGIONS as u64));
            }
            R::AddMemReg => {
                let (SingleRegion { region, .. }, fd) = form.with_fd()?;
                self.needs(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                if self.regions.contains(&region) {
                    // QEMU up to 8.0 adds, and later removes, every region once per queue pair.
                    match self.repeated.iter_mut().find(|(r, _)| *r == region) {
                        Some((_, times)) => *times = times.saturating_add(1),
                        None => self.repeated.push((region, 1)),
                    }
                } else {
                    let file = self.keep(Some(&fd));
                    let (regions, words) = (self.regions.with(region), words(&region));
                    self.set_memory(regions, |keep| Ask::Add { region: words, keep }, vec![fd])?;
                    self.files.extend(file.map(|file| (region, file)));
                }
            }
            R::RemMemReg => {
                let RegionSpec { guest_addr, user_addr, size, .. } = form.gone()?;
                self.needs(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                let same = |s: &RegionSpec| (s.guest_addr, s.user_addr, s.size) == (guest_addr, user_addr, size);
                if let Some((_, times)) = self.repeated.iter_mut().find(|(r, _)| same(r)) {
                    *times -= 1;
                    self.repeated.retain(|(_, times)| *times > 0);
                } else {
                    let without =
                        self.regions.without(same).ok_or(Refusal::NoRegion { guest_addr, user_addr, size })?;
                    let region = [guest_addr, size, user_addr, 0];
                    self.set_memory(without, |keep| Ask::Remove { region, keep }, Vec::new())?;
                    self.files.retain(|(region, _)| !same(region));
                }
            }
            // Nothing that we ever offer: its form is not judged.
            _ => return Err(Refusal::NotOffered.into()),
        }
        Ok(None)
    }
}

/// A region as the switch is told of it.
pub(super) fn words(region: &RegionSpec) -> lasthop_connection::Region {
    zerocopy::transmute!(*region)
}

/// Another descriptor of the same file.
pub(super) fn copy(fd: impl AsFd, aside: &Arc<Aside>) -> Option<Foreign> {
    Some(Foreign::new(rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?, aside))
}
