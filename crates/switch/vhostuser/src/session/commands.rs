//! What each request means.

use super::*;

impl Session {
    /// Carries out one request: first its form is judged, then what it means.
    pub(super) fn command(&mut self, form: Form, events: &mut Vec<SessionEvent>) -> Result<Answer, Fault> {
        if BARE.contains(&form.request) {
            form.empty()?;
        }
        self.device_command(form, events)
    }

    /// Requests about the device as a whole.
    fn device_command(&mut self, mut form: Form, events: &mut Vec<SessionEvent>) -> Result<Answer, Fault> {
        use Request as R;
        match form.request {
            R::GetFeatures => return Ok(number(Features::OFFERED.bits())),
            R::SetFeatures => self.set_features(form.exactly()?)?,
            // It marks the start of a session; QEMU and virtio-user send it more than once.
            R::SetOwner => {}
            R::ResetOwner => self.reset(events),
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
            R::GetQueueNum => return Ok(number((self.queues.len() / 2) as u64)),
            R::SendRarp => {
                let [mac @ .., _, _] = form.exactly::<[u8; 8]>()?;
                self.needs(ProtocolFeatures::RARP)?;
                let mac = MacAddr(mac);
                if !mac.is_unicast_source() {
                    return Err(Refusal::Address(mac).into());
                }
                events.push(SessionEvent::Announce { mac });
            }
            R::NetSetMtu => {
                let mtu: u64 = form.exactly()?;
                self.needs(ProtocolFeatures::NET_MTU)?;
                let small = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MIN_MTU);
                events.push(SessionEvent::Mtu(small.ok_or(Refusal::Mtu(mtu))?));
            }
            R::SetBackendReqFd => {
                form.with_fd::<[u8; 0]>()?;
                return Err(Refusal::NotOffered.into());
            }
            R::ResetDevice => {
                self.needs(ProtocolFeatures::RESET_DEVICE)?;
                self.reset(events);
                self.features = Features::empty();
                self.status = 0;
            }
            R::SetStatus => {
                let value: u64 = form.exactly()?;
                self.needs(ProtocolFeatures::STATUS)?;
                self.status = u8::try_from(value).map_err(|_| Refusal::Status(value))?;
                if self.status == 0 {
                    // The guest has reset its device. Enabled or not is the front-end's to say again.
                    (0..self.rings.len()).for_each(|i| self.stop(i, events));
                }
                self.changed = true;
            }
            R::GetStatus => {
                self.needs(ProtocolFeatures::STATUS)?;
                return Ok(number(self.status.into()));
            }
            _ => return self.ring_command(form, events),
        }
        Ok(None)
    }

    /// Requests about one ring.
    fn ring_command(&mut self, form: Form, events: &mut Vec<SessionEvent>) -> Result<Answer, Fault> {
        use Request as R;
        match form.request {
            R::SetVringNum => {
                let (i, size) = self.ring(&form)?;
                // Whether it must be a power of two is known when the ring starts.
                let small = u16::try_from(size).ok().filter(|size| (1..=32768).contains(size));
                let size = small.ok_or(Refusal::RingSize(size))?;
                self.configure(i, self.rings[i].size != size, |ring| ring.size = size, events)?;
            }
            R::SetVringAddr => {
                let addr: VringAddr = form.exactly()?;
                if addr.flags & !VRING_LOG != 0 {
                    return Err(form.wrong(addr.flags.into()).into());
                }
                if addr.flags & VRING_LOG != 0 {
                    // The feature LOG_ALL is not.
                    return Err(Refusal::NotOffered.into());
                }
                let i = self.index(addr.index)?;
                self.configure(i, self.rings[i].addr != Some(addr), |ring| ring.addr = Some(addr), events)?;
            }
            R::SetVringBase => {
                let (i, base) = self.ring(&form)?;
                self.configure(i, self.rings[i].base != base, |ring| ring.base = base, events)?;
            }
            R::GetVringBase => {
                let (i, _) = self.ring(&form)?;
                self.stop(i, events);
                return Ok(Some(([i as u32, self.rings[i].base].as_bytes().to_vec(), None)));
            }
            R::SetVringKick => {
                let (i, fd) = self.ring_fd(form)?;
                if !self.is_running(i) {
                    self.rings[i].state = RingState::Waiting;
                }
                events.push(SessionEvent::Kick { queue: i, fd });
                self.try_start(i, events);
                self.changed = true;
            }
            R::SetVringCall => {
                let (i, fd) = self.ring_fd(form)?;
                // What was used while there was no call descriptor, or another, must not wait for the next packet.
                if let Some(fd) = fd.as_ref().filter(|_| self.is_running(i)) {
                    fd.signal();
                }
                self.queues[i].set_call(fd);
            }
            R::SetVringErr => {
                let (i, fd) = self.ring_fd(form)?;
                self.queues[i].set_err(fd);
            }
            R::SetVringEnable => {
                // QEMU enables rings before SET_FEATURES when it reconnects.
                let (index, enabled) = form.state()?;
                if enabled > 1 {
                    return Err(form.wrong(enabled.into()).into());
                }
                let i = self.index(index)?;
                self.enable(i, enabled == 1);
            }
            _ => return self.memory_command(form, events),
        }
        Ok(None)
    }

    /// Requests about memory that is shared.
    fn memory_command(&mut self, mut form: Form, events: &mut Vec<SessionEvent>) -> Result<Answer, Fault> {
        use Request as R;
        match form.request {
            R::SetMemTable => {
                let mut memory = self.memory.cleared();
                for (spec, fd) in form.table()? {
                    match memory.with_region(spec, fd) {
                        Ok(more) => memory = more,
                        Err(why) => {
                            // Those before may be the last that have their files.
                            self.transport.aside().unmap_aside(memory);
                            return Err(Refusal::Memory(why).into());
                        }
                    }
                }
                self.repeated.clear();
                self.set_memory(memory, events);
            }
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
                let mapped = self.memory.mapped();
                let adopted = Inflight::adopt(&desc, fd, self.rings.len(), self.packed(), mapped);
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
                if self.memory.regions().any(|r| r == region) {
                    // QEMU up to 8.0 adds, and later removes, every region once per queue pair.
                    match self.repeated.iter_mut().find(|(r, _)| *r == region) {
                        Some((_, times)) => *times = times.saturating_add(1),
                        None => self.repeated.push((region, 1)),
                    }
                } else {
                    let memory = self.memory.with_region(region, fd).map_err(Refusal::Memory)?;
                    self.set_memory(memory, events);
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
                    let memory = self.memory.without_region(guest_addr, user_addr, size);
                    self.set_memory(memory.ok_or(Refusal::NoRegion { guest_addr, user_addr, size })?, events);
                }
            }
            // Nothing that we ever offer: its form is not judged.
            _ => return Err(Refusal::NotOffered.into()),
        }
        Ok(None)
    }
}
