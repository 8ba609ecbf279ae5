//! What a record says of a flow besides its counters: which fields the flow looks at decides its template.

use super::message::{Field, element};
use lasthop_api::Flow;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Number of the template of flows that look at Ethernet addresses only; bits of what others look at are added.
pub const FIRST: u16 = 256;
const ETHERTYPE: u16 = 1;
const IPV4: u16 = 2;
const IPV6: u16 = 4;
const PROTOCOL: u16 = 8;
const PORTS: u16 = 16;
const ICMP: u16 = 32;
/// Behind the last of them.
pub const END: u16 = FIRST + 64;

/// Values of a flow's key, in its template's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub template: u16,
    pub values: Box<[u8]>,
}

/// All fields of a template: a key's, then counters and times.
pub fn fields(template: u16) -> Vec<Field> {
    let has = |bit| template.wrapping_sub(FIRST) & bit != 0;
    let groups: [(bool, &[Field]); 7] = [
        (
            true,
            &[
                element::INGRESS,
                element::EGRESS,
                element::SOURCE_MAC,
                element::DESTINATION_MAC,
                element::VLAN,
                element::FORWARDING,
            ],
        ),
        (has(ETHERTYPE), &[element::ETHERTYPE]),
        (
            has(IPV4),
            &[
                element::SOURCE_IPV4,
                element::SOURCE_IPV4_PREFIX,
                element::DESTINATION_IPV4,
                element::DESTINATION_IPV4_PREFIX,
            ],
        ),
        (
            has(IPV6),
            &[
                element::SOURCE_IPV6,
                element::SOURCE_IPV6_PREFIX,
                element::DESTINATION_IPV6,
                element::DESTINATION_IPV6_PREFIX,
            ],
        ),
        (has(PROTOCOL), &[element::PROTOCOL]),
        (has(PORTS), &[element::SOURCE_PORT, element::DESTINATION_PORT]),
        (has(ICMP), if has(IPV6) { &[element::ICMP_IPV6] } else { &[element::ICMP_IPV4] }),
    ];
    let mut all: Vec<Field> = groups.iter().filter(|(has, _)| *has).flat_map(|(_, fields)| *fields).copied().collect();
    all.extend([element::OCTETS, element::PACKETS, element::START, element::END, element::END_REASON]);
    all
}

/// A field's value, and its mask if only some bits matter.
type Value<'a> = (&'a str, Option<&'a str>);

struct Fields<'a>(BTreeMap<&'a str, Value<'a>>);

impl<'a> Fields<'a> {
    fn new(flow: &'a Flow) -> Self {
        let value = |text: &'a str| text.split_once('/').map_or((text, None), |(value, mask)| (value, Some(mask)));
        Self(flow.fields.iter().map(|field| (field.name.as_str(), value(&field.value))).collect())
    }

    /// The value, if all its bits matter.
    fn exact(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).filter(|(_, mask)| mask.is_none()).map(|(value, _)| *value)
    }

    fn number(&self, name: &str) -> Option<u16> {
        let text = self.exact(name)?;
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u16::from_str_radix(digits, 16).ok())
    }

    fn mac(&self, name: &str) -> [u8; 6] {
        let mut bytes = [0; 6];
        let digits = self.exact(name).into_iter().flat_map(|text| text.split(':'));
        bytes.iter_mut().zip(digits).for_each(|(byte, digits)| *byte = u8::from_str_radix(digits, 16).unwrap_or(0));
        bytes
    }

    /// Bytes of an address, and how many bits of it matter from the first on; zeros if none does.
    fn address<const N: usize>(&self, name: &str, read: impl Fn(&str) -> Option<[u8; N]>) -> ([u8; N], u8) {
        let Some((value, mask)) = self.0.get(name) else { return ([0; N], 0) };
        let bits = match mask.map(&read) {
            None => (8 * N) as u8,
            Some(mask) => {
                let mask = mask.unwrap_or([0; N]);
                let whole = mask.iter().take_while(|byte| **byte == 0xff).count();
                (8 * whole) as u8 + mask.get(whole).map_or(0, |byte| byte.leading_ones() as u8)
            }
        };
        (read(value).unwrap_or([0; N]), bits)
    }
}

fn v4(text: &str) -> Option<[u8; 4]> {
    text.parse::<Ipv4Addr>().ok().map(|address| address.octets())
}

fn v6(text: &str) -> Option<[u8; 16]> {
    text.parse::<Ipv6Addr>().ok().map(|address| address.octets())
}

impl Key {
    /// Of a flow; `port` has the numbers of ports by their names.
    pub fn of(flow: &Flow, port: impl Fn(&str) -> u32) -> Self {
        let fields = Fields::new(flow);
        let (mut bits, mut values) = (0, Vec::new());
        values.extend(fields.exact("in_port").map_or(0, &port).to_be_bytes());
        // One that goes to several ports has no egress interface that could be named.
        let to = match &flow.outputs[..] {
            [one] => port(one),
            _ => 0,
        };
        values.extend(to.to_be_bytes());
        values.extend(fields.mac("eth_src"));
        values.extend(fields.mac("eth_dst"));
        values.extend(fields.number("vlan").unwrap_or(0).to_be_bytes());
        values.push(if flow.outputs.is_empty() { 128 } else { 64 });
        let ethertype = fields.number("eth_type");
        if let Some(ethertype) = ethertype {
            bits |= ETHERTYPE;
            values.extend(ethertype.to_be_bytes());
        }
        let of_ip = ["ip_src", "ip_dst", "ip_proto"].iter().any(|name| fields.0.contains_key(name));
        match ethertype {
            Some(0x0800) if of_ip => {
                bits |= IPV4;
                for name in ["ip_src", "ip_dst"] {
                    let (address, prefix) = fields.address(name, v4);
                    values.extend(address);
                    values.push(prefix);
                }
            }
            Some(0x86dd) if of_ip => {
                bits |= IPV6;
                for name in ["ip_src", "ip_dst"] {
                    let (address, prefix) = fields.address(name, v6);
                    values.extend(address);
                    values.push(prefix);
                }
            }
            _ => {}
        }
        let protocol = if bits & (IPV4 | IPV6) != 0 { fields.number("ip_proto") } else { None };
        if let Some(protocol) = protocol {
            bits |= PROTOCOL;
            values.push(protocol as u8);
        }
        let [from, to] = ["l4_src", "l4_dst"].map(|name| fields.number(name));
        match protocol {
            Some(6 | 17 | 132) if from.or(to).is_some() => {
                bits |= PORTS;
                values.extend(from.unwrap_or(0).to_be_bytes());
                values.extend(to.unwrap_or(0).to_be_bytes());
            }
            Some(1 | 58) if from.is_some() => {
                bits |= ICMP;
                values.extend([from.unwrap_or(0) as u8, to.unwrap_or(0) as u8]);
            }
            _ => {}
        }
        Self { template: FIRST + bits, values: values.into() }
    }

    /// It names a connection's packets in one direction.
    pub fn is_of_connection(&self) -> bool {
        (self.template - FIRST) & PORTS != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::Field as Named;

    fn flow(fields: &[(&str, &str)], outputs: &[&str]) -> Flow {
        let named = |(name, value): &(&str, &str)| Named { name: (*name).into(), value: (*value).into() };
        let outputs = outputs.iter().map(|name| (*name).into()).collect();
        Flow { fields: fields.iter().map(named).collect(), outputs, ..Flow::default() }
    }

    fn key(fields: &[(&str, &str)], outputs: &[&str]) -> Key {
        let key = Key::of(&flow(fields, outputs), |name| name.trim_start_matches("vm").parse().unwrap());
        let len: u16 = super::fields(key.template).iter().map(|(_, len)| *len).sum();
        // Two counters and two times of 8 bytes, and the reason.
        assert_eq!(key.values.len() + 33, usize::from(len), "values are as long as the template says");
        key
    }

    const PAIR: [(&str, &str); 4] =
        [("in_port", "vm1"), ("eth_src", "02:00:00:00:00:01"), ("eth_dst", "02:00:00:00:00:02"), ("vlan", "none")];
    const PAIR_BYTES: [u8; 22] = [0, 0, 0, 1, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0, 0];

    #[test]
    fn a_flow_of_two_stations() {
        let key = key(&PAIR, &["vm2"]);
        assert_eq!((key.template, &key.values[..]), (256, &[&PAIR_BYTES[..], &[64]].concat()[..]));
    }

    #[test]
    fn a_connection_is_named_by_all_of_its_headers() {
        let tcp = [("ip_proto", "6"), ("l4_src", "40000"), ("l4_dst", "80")];
        let v4 = [("eth_type", "0x0800"), ("ip_src", "10.0.0.1"), ("ip_dst", "10.0.0.0/255.255.252.0")];
        let key4 = key(&[&PAIR[..], &v4, &tcp].concat(), &["vm2"]);
        let behind = [8, 0, 10, 0, 0, 1, 32, 10, 0, 0, 0, 22, 6, 0x9c, 0x40, 0, 80];
        assert_eq!(&key4.values[..], &[&PAIR_BYTES[..], &[64], &behind].concat()[..]);
        assert!(key4.is_of_connection());
        let v6 = [("eth_type", "0x86dd"), ("ip_src", "fd00::1"), ("ip_dst", "fd00::/ffff:8000::")];
        let key6 = key(&[&PAIR[..], &v6, &[("ip_proto", "58"), ("l4_src", "128"), ("l4_dst", "0")]].concat(), &[]);
        assert_eq!(key6.values[22], 128, "it goes nowhere");
        assert_eq!(key6.values[41..43], [128, 0xfd], "an exact address, and the next");
        assert_eq!(key6.values[58..], [17, 58, 128, 0]);
        assert!(!key6.is_of_connection() && key6.template < END);
    }

    #[test]
    fn what_a_flow_does_not_look_at_is_not_named() {
        let arp = [("eth_type", "0x0806"), ("ip_src", "10.0.0.1")];
        assert_eq!(key(&[&PAIR[..], &arp].concat(), &["vm2"]).template, FIRST + ETHERTYPE);
        let masked = [("in_port", "vm1"), ("eth_src", "01:00:00:00:00:00/01:00:00:00:00:00"), ("vlan", "7")];
        let key = key(&masked, &["vm2", "vm3"]);
        assert_eq!(key.values[4..], [[0; 16].as_slice(), &[0, 7, 64]].concat()[..], "a flood, from some address");
    }
}
