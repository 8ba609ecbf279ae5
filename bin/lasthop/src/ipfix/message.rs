//! Messages of IPFIX as they are sent over UDP (RFC 7011 sections 3 and 10.3): templates, records, sequence numbers. Numbers of elements
//! are IANA's (IP Flow Information Export Entities).

/// Version, length, export time, sequence number, observation domain (RFC 7011 section 3.1).
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
/// The length of a field whose values have lengths of their own.
const VARIABLE: u16 = 65_535;

/// A field of a template: the element's number, and its length in bytes.
pub type Field = (u16, u16);

/// Elements of flows.
pub mod element {
    use super::{Field, VARIABLE};

    pub const OCTETS: Field = (1, 8);
    pub const PACKETS: Field = (2, 8);
    pub const PROTOCOL: Field = (4, 1);
    pub const SOURCE_PORT: Field = (7, 2);
    pub const SOURCE_IPV4: Field = (8, 4);
    pub const SOURCE_IPV4_PREFIX: Field = (9, 1);
    pub const INGRESS: Field = (10, 4);
    pub const DESTINATION_PORT: Field = (11, 2);
    pub const DESTINATION_IPV4: Field = (12, 4);
    pub const DESTINATION_IPV4_PREFIX: Field = (13, 1);
    pub const EGRESS: Field = (14, 4);
    pub const SOURCE_IPV6: Field = (27, 16);
    pub const DESTINATION_IPV6: Field = (28, 16);
    pub const SOURCE_IPV6_PREFIX: Field = (29, 1);
    pub const DESTINATION_IPV6_PREFIX: Field = (30, 1);
    pub const ICMP_IPV4: Field = (32, 2);
    pub const SOURCE_MAC: Field = (56, 6);
    pub const VLAN: Field = (58, 2);
    pub const DESTINATION_MAC: Field = (80, 6);
    pub const INTERFACE_NAME: Field = (82, VARIABLE);
    /// 64: forwarded, 128: dropped.
    pub const FORWARDING: Field = (89, 1);
    pub const END_REASON: Field = (136, 1);
    pub const ICMP_IPV6: Field = (139, 2);
    pub const EXPORTER: Field = (144, 4);
    pub const START: Field = (152, 8);
    pub const END: Field = (153, 8);
    pub const NOT_SENT_FLOWS: Field = (165, 8);
    pub const NOT_SENT_PACKETS: Field = (166, 8);
    pub const NOT_SENT_OCTETS: Field = (167, 8);
    pub const ETHERTYPE: Field = (256, 2);
}

/// A message that is to be sent, and the data records in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub bytes: Vec<u8>,
    pub records: u32,
}

/// Puts records into messages.
#[derive(Debug)]
pub struct Writer {
    domain: u32,
    /// Longest message, in bytes.
    room: usize,
    /// Data records in all messages before this one, modulo 2^32.
    sequence: u32,
    /// The set that is being written, and where it begins.
    set: Option<(u16, usize)>,
    message: Vec<u8>,
    records: u32,
    done: Vec<Message>,
}

impl Writer {
    /// Of this observation domain, in messages of at most so many bytes.
    pub fn new(domain: u32, room: usize) -> Self {
        Self { domain, room, sequence: 0, set: None, message: vec![0; HEADER], records: 0, done: Vec::new() }
    }

    /// A template (section 3.4.1), or with scope fields, which are the first so many, an options template (section 3.4.2).
    pub fn template(&mut self, id: u16, fields: &[Field], scopes: u16, seconds: u32) {
        let mut record = Vec::with_capacity(6 + 4 * fields.len());
        record.extend(id.to_be_bytes());
        record.extend((fields.len() as u16).to_be_bytes());
        if scopes > 0 {
            record.extend(scopes.to_be_bytes());
        }
        for (element, len) in fields {
            record.extend(element.to_be_bytes());
            record.extend(len.to_be_bytes());
        }
        self.put(if scopes > 0 { OPTIONS_TEMPLATES } else { TEMPLATES }, &record, seconds);
    }

    /// A data record of the template with this number.
    pub fn record(&mut self, id: u16, values: &[u8], seconds: u32) {
        self.put(id, values, seconds);
        self.records += 1;
    }

    fn put(&mut self, set: u16, record: &[u8], seconds: u32) {
        let is_open = |writer: &Self| writer.set.is_some_and(|(id, _)| id == set);
        let header = if is_open(self) { 0 } else { SET_HEADER };
        if self.message.len() + header + record.len() > self.room {
            self.end_message(seconds);
        }
        if !is_open(self) {
            self.end_set();
            self.set = Some((set, self.message.len()));
            self.message.extend(set.to_be_bytes());
            self.message.extend([0; 2]);
        }
        self.message.extend(record);
    }

    fn end_set(&mut self) {
        if let Some((_, at)) = self.set.take() {
            let len = (self.message.len() - at) as u16;
            self.message[at + 2..at + 4].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Ends the message, at this time in seconds since 1970, if there is anything in it.
    pub fn end_message(&mut self, seconds: u32) {
        self.end_set();
        if self.message.len() == HEADER {
            return;
        }
        let mut bytes = std::mem::replace(&mut self.message, vec![0; HEADER]);
        let records = std::mem::take(&mut self.records);
        let len = bytes.len() as u16;
        bytes[..2].copy_from_slice(&10u16.to_be_bytes());
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes[4..8].copy_from_slice(&seconds.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[12..].split_at_mut(4).0.copy_from_slice(&self.domain.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(records);
        self.done.push(Message { bytes, records });
    }

    /// Messages that are whole.
    pub fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.done)
    }
}

/// A value with a length of its own (section 7).
pub fn variable(text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(254)];
    [&[text.len() as u8], text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header and the sets of a message.
    fn parts(bytes: &[u8]) -> ([u32; 4], Vec<(u16, Vec<u8>)>) {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let short = |at: usize| u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap());
        assert_eq!((short(0), usize::from(short(2))), (10, bytes.len()));
        let (mut at, mut sets) = (HEADER, Vec::new());
        while at < bytes.len() {
            let len = usize::from(short(at + 2));
            sets.push((short(at), bytes[at + SET_HEADER..at + len].to_vec()));
            at += len;
        }
        assert_eq!(at, bytes.len());
        ([word(0), word(4), word(8), word(12)], sets)
    }

    #[test]
    fn records_fill_messages_and_are_counted() {
        let mut writer = Writer::new(7, 60);
        writer.template(256, &[element::PACKETS, element::OCTETS], 0, 5);
        writer.template(257, &[element::INGRESS, element::INTERFACE_NAME], 1, 5);
        (0..3u8).for_each(|n| writer.record(256, &[n; 16], 6));
        writer.end_message(9);
        writer.end_message(9);
        let messages = writer.take();
        assert_eq!(messages.iter().map(|message| message.records).collect::<Vec<_>>(), [0, 2, 1]);
        assert!(messages.iter().all(|message| message.bytes.len() <= 60));
        let (header, sets) = parts(&messages[0].bytes);
        assert_eq!(header[1..], [6, 0, 7]);
        assert_eq!(sets[0], (2, vec![1, 0, 0, 2, 0, 2, 0, 8, 0, 1, 0, 8]));
        assert_eq!(sets[1], (3, vec![1, 1, 0, 2, 0, 1, 0, 10, 0, 4, 0, 82, 255, 255]));
        let (header, sets) = parts(&messages[1].bytes);
        assert_eq!((header[2], &sets[..]), (0, &[(256, [[0; 16], [1; 16]].concat())][..]));
        let (header, sets) = parts(&messages[2].bytes);
        assert_eq!((header[1], header[2], &sets[..]), (9, 2, &[(256, vec![2; 16])][..]));
        assert!(writer.take().is_empty());
    }

    #[test]
    fn sequence_numbers_begin_anew_behind_the_last() {
        let mut writer = Writer::new(0, 600);
        writer.sequence = u32::MAX;
        for _ in 0..2 {
            writer.record(256, &[0], 0);
            writer.end_message(0);
        }
        let numbers: Vec<_> = writer.take().iter().map(|message| parts(&message.bytes).0[2]).collect();
        assert_eq!(numbers, [u32::MAX, 0]);
    }

    #[test]
    fn texts_say_how_long_they_are() {
        assert_eq!(variable("vm1"), b"\x03vm1");
        assert_eq!(variable(&"x".repeat(300)).len(), 255);
    }
}
