//! Connections that outlive this process: those that both sides have spoken on, each noted when it is and when it is not any more. Others are so young, or so
//! near their end, that whoever began them begins again.

use crate::Datapath;
use crate::Out;
use crate::walk::is_kept;
use lasthop_conntrack::{Commit, Connection, Cursor, Nat, Tuple};
use lasthop_ovs_abi::netlink::{Message, Writer};
use std::collections::HashSet;

/// Types of the messages that say that a connection is there, and that it is not.
pub(crate) const KEPT: u16 = 0x7f00;
pub(crate) const GONE: u16 = 0x7f01;
/// How many tuples of one connection may stand one behind the other.
const NEAR: usize = 4;

/// Bytes of a tuple.
const TUPLE: usize = 40;
const MARK: usize = 4;
const LABEL: usize = 16;
const OWNER: usize = 2;

/// Those that are noted, by the tuples of their first packets: at most as many as there may be.
pub(crate) type Noted = HashSet<Tuple>;

fn write_tuple(of: &Tuple, to: &mut Writer) {
    to.raw(&[of.is_v6().into(), of.proto()]);
    to.raw(&of.zone().to_ne_bytes());
    [of.src(), of.dst()].iter().for_each(|address| to.raw(address));
    of.ports().iter().for_each(|port| to.raw(&port.to_ne_bytes()));
}

fn read_tuple(bytes: &[u8; TUPLE]) -> Option<Tuple> {
    let [v6, proto, zone @ ..] = bytes.first_chunk::<4>()?;
    let ([src, dst], _) = bytes.get(4..36)?.as_chunks::<16>() else { return None };
    let (ports, _) = bytes.get(36..)?.as_chunks::<2>();
    let [src_port, dst_port] = ports.first_chunk::<2>()?.map(u16::from_ne_bytes);
    Some(Tuple::new([*src, *dst], [src_port, dst_port], *proto, *v6 != 0, u16::from_ne_bytes(*zone)))
}

impl Datapath {
    fn write_kept(&self, of: &Connection, to: &mut Writer) {
        to.begin(KEPT, 0, 0, 0);
        write_tuple(&of.original, to);
        write_tuple(&of.reply.inverse().unwrap_or(of.original), to);
        to.raw(&of.mark.to_ne_bytes());
        to.raw(&of.label.to_ne_bytes());
        to.raw(&of.owner.to_ne_bytes());
        to.raw(&[0; 2]);
        to.raw(self.policies.set_of_number(of.policy));
        to.pad();
        to.end();
    }

    /// These have begun or ended, or are otherwise than before.
    pub(crate) fn note_connections(&mut self, tuples: &[Tuple]) {
        let mut to = Writer::new();
        for (n, tuple) in tuples.iter().enumerate() {
            if tuples.get(n.saturating_sub(NEAR)..n).is_some_and(|before| before.contains(tuple)) {
                continue;
            }
            let found = self.connections.tracker.as_ref().and_then(|tracker| tracker.get(tuple, self.now_ms));
            match found.filter(|of| of.original == *tuple && is_kept(of)) {
                Some(of) => {
                    self.noted.insert(*tuple);
                    self.write_kept(&of, &mut to);
                }
                None if self.noted.remove(tuple) => {
                    to.begin(GONE, 0, 0, 0);
                    write_tuple(tuple, &mut to);
                    to.end();
                }
                None => {}
            }
        }
        if !to.is_empty() {
            self.out.push(Out::Note(to.into_bytes()));
        }
    }

    /// Those that are noted among the next `places` of the table, anew. Where to go on, unless these were the last.
    pub(crate) fn write_kept_from(&self, from: Cursor, places: u32, to: &mut Writer) -> Option<Cursor> {
        let tracker = self.connections.tracker.as_ref().filter(|_| !self.noted.is_empty())?;
        tracker.dump(from, places, self.now_ms, |of| {
            if self.noted.contains(&of.original) {
                self.write_kept(&of, to);
            }
        })
    }

    /// Takes a connection that another process has noted, or its end.
    pub(crate) fn restore_connection(&mut self, message: &Message<'_>) -> Option<()> {
        let tracker = self.connections.tracker.as_ref()?;
        let (original, rest) = message.payload.split_first_chunk::<TUPLE>()?;
        let original = read_tuple(original)?;
        if message.kind == GONE {
            tracker.remove(&original, self.now_ms);
            self.noted.remove(&original);
            return Some(());
        }
        let (sent, rest) = rest.split_first_chunk::<TUPLE>()?;
        let (mark, rest) = rest.split_first_chunk::<MARK>()?;
        let (label, rest) = rest.split_first_chunk::<LABEL>()?;
        let (owner, rest) = rest.split_first_chunk::<OWNER>()?;
        let set = rest.get(2..)?.split(|byte| *byte == 0).next().unwrap_or_default();
        let commit = Commit {
            force: false,
            mark: (u32::from_ne_bytes(*mark), u32::MAX),
            label: (u128::from_ne_bytes(*label), u128::MAX),
            policy: self.policies.number_of_set(set),
            owner: u16::from_ne_bytes(*owner),
        };
        // Of one that is noted again something has changed.
        tracker.remove(&original, self.now_ms);
        let nat = Nat::exactly(&original, &read_tuple(sent)?);
        let adopted = tracker.adopt_translated(original, &nat, &commit, self.now_ms);
        match adopted {
            Ok(true) => drop(self.noted.insert(original)),
            Ok(false) | Err(_) => drop(self.noted.remove(&original)),
        }
        Some(())
    }
}
