//! What a port sends: its own packets, those that go back, those that are the first of their flows.

use super::super::grants::Heap;
use super::super::port::{Buffers, Port, broken};
use super::super::{Check, Outcome, Pattern, failed, frame};
use super::lend::{came_back, lend};
use super::{BURST, Card, VNET, Worker, now};
use std::sync::atomic::Ordering;

impl Worker {
    /// Sends a received frame back to where it came from; it is in one buffer, or it is lost.
    pub(super) fn send_back(&mut self, i: usize, queue: usize, addr: u64, len: u32, head: &mut [u8]) -> Outcome<()> {
        let card = &mut self.cards[i];
        let Some(token) = reclaim(card, queue, &mut self.pool, false)? else {
            self.findings.unsent += 1;
            return Ok(());
        };
        frame::turn_round(head);
        let to = self.memory.slice(card.tx.at(token), len as usize);
        self.memory.slice(addr, len as usize).copy_to(&to);
        to.write(0, &[0; VNET]);
        to.write(VNET, head);
        let told = lend(&mut card.port, &card.tx, token, card.tx_len, false)?;
        let ring = &mut card.port.tx[queue];
        if told.is_none_or(|addr| ring.ring.add(&[(addr, len)], &[], token).is_err()) {
            card.spare[queue].push(token);
        }
        ring.publish();
        Ok(())
    }

    pub(super) fn send(&mut self, i: usize) -> Outcome<bool> {
        let Some(card) = self.cards.get_mut(i) else { return Ok(false) };
        if self.settings.pattern.circulates() {
            return Ok(false);
        }
        let Some(sender) = &mut card.sender else { return Ok(false) };
        let ping_pong = self.settings.pattern == Pattern::PingPong;
        let paced = sender.pacer.is_some();
        let time = if paced || ping_pong || sender.window.is_some() || self.times.is_some() { now() } else { 0 };
        let mut room = sender.left.min(BURST as u64);
        if let Some(window) = &mut sender.window {
            let delivered = self.shared.delivered[usize::from(card.port.number)].0.load(Ordering::Relaxed);
            room = room.min(window.room(delivered, time));
        }
        let (mut count, mut lured, mut bytes, queues) = (0, 0, 0, self.queues);
        let greedy = card.group.is_some() && !paced;
        if greedy {
            for (queue, spare) in card.spare.iter_mut().enumerate() {
                take_back(&mut card.port, &mut card.tx, &mut card.heap, spare, card.tx_len, queue)?;
            }
            card.count.looks += u64::from(self.back);
            card.count.dry += u64::from(self.back && card.spare.iter().map(Vec::len).sum::<usize>() == card.buffers);
        }
        while count < room {
            let queue = if queues == 1 { 0 } else { (sender.flow() % u32::from(queues)) as usize };
            let spare = &mut card.spare[queue];
            if spare.is_empty() || (count == 0 && spare.len() < BURST) {
                take_back(&mut card.port, &mut card.tx, &mut card.heap, spare, card.tx_len, queue)?;
            }
            let Some(&token) = spare.last() else { break };
            let stamp = match &mut sender.pacer {
                Some(pacer) => match pacer.take(time) {
                    Some(due) => due,
                    None => break,
                },
                None => time,
            };
            let Some(told) = lend(&mut card.port, &card.tx, token, card.tx_len, false)? else { break };
            let packet = sender.next(stamp);
            let (addr, len) = (card.tx.at(token), packet.head.len() + packet.tail);
            let buffer = self.memory.slice(addr, len);
            buffer.write(0, packet.head);
            if self.settings.check == Check::Content {
                self.scratch.resize(packet.tail, 0);
                frame::fill(card.port.number, packet.flow, packet.sequence, &mut self.scratch);
                buffer.write(packet.head.len(), &self.scratch);
            }
            if card.port.tx[queue].ring.add(&[(told, len as u32)], &[], token).is_err() {
                return Err(failed("a ring with room refuses a buffer: a bug"));
            }
            let is_lured = u64::from(packet.lured);
            spare.pop();
            sender.left -= 1;
            count += 1;
            bytes += (len - VNET) as u64;
            lured += is_lured;
            if let Some(window) = &mut sender.window {
                window.sent();
            }
        }
        if count == 0 {
            return Ok(false);
        }
        let copies =
            if self.settings.pattern == Pattern::Broadcast { self.shared.delivered.len() as u64 - 1 } else { 1 };
        card.count.sent += count;
        card.count.sent_bytes += bytes;
        self.window.sent += count - lured;
        self.findings.expected += (count - lured) * copies;
        for ring in &mut card.port.tx {
            ring.publish();
        }
        Ok(true)
    }

    /// The next packet that is the first of its flow, if it is due.
    pub(super) fn send_first(&mut self, i: usize) -> Outcome<bool> {
        let (Some(card), Some(first)) = (self.cards.get_mut(i), &mut self.firsts) else { return Ok(false) };
        if card.port.number != first.from() {
            return Ok(false);
        }
        let Some(due) = first.pacer.take(now()) else { return Ok(false) };
        let Some(token) = reclaim(card, 0, &mut self.pool, false)? else { return Ok(false) };
        let bytes = first.next(due);
        let addr = card.tx.at(token);
        self.memory.slice(addr, bytes.len()).write(0, &bytes);
        let told = lend(&mut card.port, &card.tx, token, card.tx_len, false)?;
        let ring = &mut card.port.tx[0];
        if told.is_none_or(|addr| ring.ring.add(&[(addr, bytes.len() as u32)], &[], token).is_err()) {
            card.spare[0].push(token);
        }
        ring.publish();
        Ok(true)
    }
}

/// Takes back the send buffers of a queue that the device is done with.
#[inline]
fn take_back(
    port: &mut Port,
    buffers: &mut Buffers,
    heap: &mut Option<Heap>,
    spare: &mut Vec<u32>,
    len: u32,
    queue: usize,
) -> Outcome<()> {
    while let Some((token, _)) = port.tx[queue].ring.poll_used().map_err(broken)? {
        came_back(port, buffers, heap, token, len, false)?;
        spare.push(token);
    }
    Ok(())
}

/// Takes a send buffer, after taking back what the device is done with if there is none.
pub(super) fn reclaim(card: &mut Card, queue: usize, pool: &mut Vec<u32>, circulates: bool) -> Outcome<Option<u32>> {
    let spare = if circulates { pool } else { &mut card.spare[queue] };
    if spare.is_empty() || card.port.tx[queue].ring.free() == 0 {
        take_back(&mut card.port, &mut card.tx, &mut card.heap, spare, card.tx_len, queue)?;
    }
    Ok(if card.port.tx[queue].ring.free() == 0 { None } else { spare.pop() })
}
