//! Buffers go to the switch and come back: what has to be granted before, what is revoked afterwards, and where a buffer lies next.

use super::super::Outcome;
use super::super::grants::Heap;
use super::super::guest::Count;
use super::super::port::{Buffers, Memory, PAGE, Port};
use super::super::settings::Settings;
use super::Card;
use lasthop_vhostuser::Features;

/// Before the switch gets a buffer: where it finds it, or nothing if it cannot be granted now.
#[inline]
pub(super) fn lend(port: &mut Port, buffers: &Buffers, token: u32, len: u32, write: bool) -> Outcome<Option<u64>> {
    let addr = buffers.at(token);
    let Some(grants) = &mut port.grants else { return Ok(Some(addr)) };
    let given = grants.give(&port.front, addr, len.into(), write)?;
    Ok(given.then(|| grants.address(addr, write)))
}

/// After the switch has given it back: it may lie elsewhere next time.
#[inline]
pub(super) fn came_back(
    port: &mut Port,
    buffers: &mut Buffers,
    heap: &mut Option<Heap>,
    token: u32,
    len: u32,
    write: bool,
) -> Outcome<()> {
    let addr = buffers.at(token);
    if let Some(grants) = &mut port.grants {
        grants.take_back(&port.front, addr, len.into(), write)?;
    }
    if let Some((place, next)) =
        buffers.places.get_mut(token as usize).zip(heap.as_mut().and_then(|h| h.draw(Some(addr))))
    {
        *place = next;
    }
    Ok(())
}

impl Card {
    /// A port with the buffers that all share, or with its own: in line, or anywhere in a heap. No buffer is with the switch yet.
    pub(super) fn new(port: Port, settings: &Settings, common: Option<&Buffers>, memory: &mut Memory) -> Outcome<Self> {
        let (entries, queues) = (u32::from(settings.ring_size), u32::from(settings.queues));
        let [rx_len, tx_len] = [settings.receive_buffer(), settings.tx_buffer(port.number)];
        let mut own = |len: usize| match (common, settings.stride(len)) {
            (Some(common), _) => Ok(common.clone()),
            (None, stride) => Ok(Buffers::in_line(memory.take(u64::from(entries * queues) * stride)?, stride)),
        };
        let (mut rx, mut tx, mut heap) = (own(rx_len)?, own(tx_len)?, None);
        if let Some(pages) = settings.heap {
            let made = heap.insert(Heap::new(memory.take(pages as u64 * PAGE)?, pages, rx_len.max(tx_len)));
            for buffers in [&mut rx, &mut tx] {
                buffers.places = (0..entries * queues).filter_map(|_| made.draw(None)).collect();
            }
        }
        let spare = |q: u32| match common {
            Some(_) => Vec::new(),
            None => (q * entries..(q + 1) * entries).rev().collect(),
        };
        Ok(Self {
            mergeable: port.features.contains(Features::MRG_RXBUF),
            port,
            rx,
            rx_len: rx_len as u32,
            tx,
            tx_len: tx_len as u32,
            spare: (0..queues).map(spare).collect(),
            buffers: usize::from(settings.ring_size) * usize::from(settings.queues),
            ungranted: vec![Vec::new(); queues as usize],
            heap,
            sender: None,
            orders: vec![Vec::new(); settings.sockets.len()],
            drained: 0,
            group: None,
            kicks: false,
            count: Count::default(),
            count_before: Count::default(),
        })
    }

    /// A receive buffer for the switch, now or as soon as it can be granted. It is shown with the others of its burst.
    #[inline]
    pub(super) fn offer(&mut self, queue: usize, token: u32) -> Outcome<()> {
        match lend(&mut self.port, &self.rx, token, self.rx_len, true)? {
            Some(addr) => {
                let _ = self.port.rx[queue].ring.add(&[], &[(addr, self.rx_len)], token);
            }
            None => self.ungranted[queue].push(token),
        }
        Ok(())
    }

    /// Receive buffers that could not be granted are tried again.
    pub(super) fn offer_again(&mut self, queue: usize) -> Outcome<()> {
        if self.ungranted[queue].is_empty() {
            return Ok(());
        }
        for token in std::mem::take(&mut self.ungranted[queue]) {
            self.offer(queue, token)?;
        }
        self.port.rx[queue].publish();
        Ok(())
    }

    /// Between packets: questions of the switch, and what is revoked now and then.
    pub(super) fn tend(&mut self, time: u64) -> Outcome<()> {
        let Some(grants) = &mut self.port.grants else { return Ok(()) };
        grants.answer(&self.port.front)?;
        if let Some(every) = grants.drains()
            && time.saturating_sub(self.drained) >= every.as_nanos() as u64
        {
            self.drained = time;
            grants.drain(&self.port.front)?;
        }
        (0..self.ungranted.len()).try_for_each(|queue| self.offer_again(queue))
    }
}
