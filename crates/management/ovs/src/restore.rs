//! What outlives this process: the datapath, its ports, flows and meters, limits of zones, time-out policies and [connections](crate::kept), as messages that make
//! them. What has been counted and the numbers of tunnels are not among it.

use crate::kept::{GONE, KEPT};
use crate::ports::Vport;
use crate::requests::{Changes, DP_IFINDEX, Request};
use crate::table::{Flow, FlowId};
use crate::takers::pids;
use crate::{Datapath, Out, tunnels};
use lasthop_conntrack::Cursor;
use lasthop_ovs_abi::family::{self, command, datapath, vport};
use lasthop_ovs_abi::limit;
use lasthop_ovs_abi::netlink::{Message, OVS_HEADER, Writer, messages, table, text_of, u32_of};
use lasthop_ovs_abi::{meter, timeouts, traffic};
use std::collections::BTreeSet;

/// Flag of a port's message here: its interface was opened because Open vSwitch wanted it.
const OPENED: u16 = 1;
/// Families whose requests are noted as they are.
const WHOLE: [family::Family; 4] = [family::DATAPATH, family::VPORT, family::FLOW, family::CT_LIMIT];

/// Where the writing of all that there is to note goes on; the default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotesFrom(Place);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    /// Behind this flow, up to the last that there was at the beginning: later ones are noted as they come.
    Flows {
        behind: FlowId,
        last: FlowId,
    },
    Connections(Cursor),
}

fn note_flow(flow: &Flow, to: &mut Writer) {
    to.begin(family::FLOW.id, 0, 0, 0);
    to.ovs_header(command::NEW, family::FLOW.version, DP_IFINDEX);
    flow.write(0, to);
    to.end();
}

impl Datapath {
    /// A request has been carried out: it is noted if it has changed what is to outlive this process.
    pub(crate) fn note(&mut self, message: &Message<'_>) {
        let Some((header, attributes)) = message.payload.split_at_checked(OVS_HEADER) else { return };
        let command = header.first().copied().unwrap_or_default();
        let changes = match message.kind {
            timeouts::NEW | timeouts::DELETE => true,
            id if id == family::METER.id => matches!(command, meter::command::SET | meter::command::DEL),
            id if id == family::CT_LIMIT.id => matches!(command, limit::command::SET | limit::command::DEL),
            _ => matches!(command, command::NEW | command::SET | command::DEL),
        };
        if !changes {
            return;
        }
        let note = match message.kind {
            // Its number in the switch was chosen here.
            id if id == family::METER.id => {
                let Ok(id) = meter::id_of(attributes) else { return };
                let mut to = Writer::new();
                self.note_meter(id, &mut to);
                to.into_bytes()
            }
            // Its number was chosen here.
            id if id == family::VPORT.id && command == command::NEW => {
                let found = table::<{ vport::COUNT }>(attributes).ok();
                let name = found.and_then(|found| text_of(found.get(usize::from(vport::NAME))?.as_ref()?).ok());
                let Some(no) = name.and_then(|name| self.find_vport(Some(name), None).ok()) else { return };
                let mut to = Writer::new();
                self.note_port(no, &mut to);
                to.into_bytes()
            }
            id if matches!(id, timeouts::NEW | timeouts::DELETE) || WHOLE.iter().any(|family| family.id == id) => {
                let mut whole = message.whole.to_vec();
                whole.resize(whole.len().next_multiple_of(4), 0);
                whole
            }
            _ => return,
        };
        self.out.push(Out::Note(note));
    }

    fn note_port(&self, no: u32, to: &mut Writer) {
        let opened = self.vports.get(&no).is_some_and(|port| port.opened);
        to.begin(family::VPORT.id, if opened { OPENED } else { 0 }, 0, 0);
        self.write_vport(no, command::NEW, to);
        to.end();
    }

    /// All that there is to note, anew: the parts one behind the other.
    pub fn notes(&self) -> Vec<u8> {
        let (mut notes, mut next) = (Vec::new(), Some(NotesFrom::default()));
        while let Some(from) = next {
            let (part, then) = self.notes_from(from, u32::MAX);
            notes.extend(part);
            next = then;
        }
        notes
    }

    /// The next part of all that there is to note, and where to go on, unless it was the last: all else, and at most `most` flows and places of the table of
    /// connections. What is noted between two parts belongs between them; what a part says counts more than what was noted before it.
    pub fn notes_from(&self, from: NotesFrom, most: u32) -> (Vec<u8>, Option<NotesFrom>) {
        let mut to = Writer::new();
        let mut left = most;
        let mut at = from;
        if let NotesFrom(Place::Start) = at {
            self.policies.write(&mut to);
            self.write_shaping(&mut to);
            if let Some(name) = &self.name {
                self.note_datapath(name, &mut to);
            }
            at = NotesFrom(Place::Flows { behind: 0, last: self.table.last() });
        }
        if let NotesFrom(Place::Flows { behind, last }) = at {
            let flows = self.table.after(behind).take_while(|(id, _)| *id <= last);
            let mut done = behind;
            for (id, flow) in flows.take(left as usize) {
                note_flow(flow, &mut to);
                (done, left) = (id, left - 1);
            }
            if left == 0 {
                return (to.into_bytes(), Some(NotesFrom(Place::Flows { behind: done, last })));
            }
            at = NotesFrom(Place::Connections(Cursor::default()));
        }
        if let NotesFrom(Place::Connections(cursor)) = at
            && let Some(cursor) = self.write_kept_from(cursor, left, &mut to)
        {
            return (to.into_bytes(), Some(NotesFrom(Place::Connections(cursor))));
        }
        self.connections.write_limits(&mut to);
        (to.into_bytes(), None)
    }

    /// All that there is to note but flows and connections: the datapath, its ports and meters, and what limits them.
    pub fn outline(&self) -> Vec<u8> {
        let (mut notes, _) = self.notes_from(NotesFrom::default(), 0);
        let mut to = Writer::new();
        self.connections.write_limits(&mut to);
        notes.extend(to.into_bytes());
        notes
    }

    /// Whether a note is of no flow and no connection.
    pub fn is_outline(note: &[u8]) -> bool {
        messages(note).all(|message| message.kind != family::FLOW.id && !matches!(message.kind, KEPT | GONE))
    }

    fn note_datapath(&self, name: &str, to: &mut Writer) {
        to.begin(family::DATAPATH.id, 0, 0, 0);
        to.ovs_header(command::NEW, family::DATAPATH.version, DP_IFINDEX);
        to.text(datapath::NAME, name);
        to.number(datapath::USER_FEATURES, self.features);
        let own = self.vports.get(&0).map(|port| &port.pids[..]).unwrap_or_default();
        let bytes = |pids: &[u32]| pids.iter().flat_map(|pid| pid.to_ne_bytes()).collect::<Vec<u8>>();
        to.attribute(datapath::UPCALL_PID, &bytes(own));
        to.attribute(datapath::PER_CPU_PIDS, &bytes(&self.cpu_pids));
        to.end();
        self.vports.keys().filter(|no| **no != 0).for_each(|no| self.note_port(*no, to));
        self.meters.write_all(to);
    }

    /// Takes what another process has noted, before anything else is heard here but the time. How many ports and flows there are then.
    pub fn restore(&mut self, notes: &[u8]) -> (usize, usize) {
        let (mut changes, mut interface, mut limits) = (Changes::default(), None, Vec::new());
        for message in messages(notes) {
            let (kind, flags, sequence) = (message.kind, message.flags, message.sequence);
            match kind {
                timeouts::NEW | timeouts::DELETE => {
                    let _ = self.timeout_request(&message, 0);
                    continue;
                }
                traffic::INTERFACE => {
                    interface = traffic::interface(message.payload);
                    continue;
                }
                // Numbers of families are among these, too.
                traffic::NEW_QDISC..traffic::LAST if let Some(name) = interface.take() => {
                    let _ = self.limit_interface(name, &message, &mut changes);
                    continue;
                }
                KEPT | GONE => {
                    self.restore_connection(&message);
                    continue;
                }
                _ => {}
            }
            let attributes = message.payload.get(OVS_HEADER..).unwrap_or_default();
            let is_new = message.payload.first() == Some(&command::NEW);
            let Some(request) = Request::of(message, 0) else { continue };
            // What was carried out once is again; what is not is of a version that knows other things.
            let _ = match kind {
                id if id == family::VPORT.id && is_new => self.restore_port(attributes, flags).map(|()| Vec::new()),
                id if id == family::VPORT.id => self.vport_request(&request, &BTreeSet::new(), &mut changes).ok(),
                id if id == family::DATAPATH.id => self.datapath_request(&request, &mut changes).ok(),
                id if id == family::FLOW.id => self.flow_request(&request, &mut changes).ok(),
                id if id == family::METER.id => self.restore_meter(&request, sequence).map(|()| Vec::new()),
                // At last: connections that were there before a limit stay.
                id if id == family::CT_LIMIT.id => {
                    limits.push(request);
                    None
                }
                _ => None,
            };
        }
        limits.iter().for_each(|request| drop(self.limit_request(request)));
        self.meter_classes(&mut changes);
        // What ended here has no flows yet.
        self.connections.tracker.iter().for_each(|tracker| drop(tracker.ended()));
        self.out.clear();
        // Whatever the one before had no time to say.
        self.tell_all_rates();
        (self.vports.len(), self.table.len())
    }

    fn restore_port(&mut self, attributes: &[u8], flags: u16) -> Option<()> {
        let found = table::<{ vport::COUNT }>(attributes).ok()?;
        let of = |kind: u16| found.get(usize::from(kind)).copied().flatten();
        let name = text_of(of(vport::NAME)?).ok()?.to_owned();
        let (no, kind) = (u32_of(of(vport::PORT_NO)?).ok()?, u32_of(of(vport::TYPE)?).ok()?);
        let pids = pids(of(vport::UPCALL_PID)).ok()?;
        if tunnels::driver_of(kind).is_some() {
            self.tunnels.add(no, tunnels::port_of(kind, of(vport::OPTIONS)).ok()?);
        }
        let opened = flags & OPENED != 0;
        if opened {
            self.opened.insert(name.clone());
        }
        self.connections.limit_port(no, opened);
        // The supervisor will say which of the switch's it is.
        self.replace_takers(&[], &pids);
        let before = self.vports.insert(no, Vport { name, kind, pids, port: None, opened });
        self.replace_takers(before.as_ref().map_or(&[], |port| &port.pids), &[]);
        Some(())
    }
}
