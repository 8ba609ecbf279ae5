//! A packet to trace, written as fields: which of them may stand together, and the frame that they make.

use crate::client::CliError;
use lasthop_text::MacAddr;
use lasthop_text::parse_mac;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Free for experiments (IEEE 802), so no receiver takes it for anything else.
const EXPERIMENTAL: u16 = 0x88b5;
/// EtherTypes of VLAN tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// TCP's flag.
const SYN: u8 = 2;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// ICMPv6 types of neighbour discovery (RFC 4861).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

#[derive(Debug, clap::Args)]
pub struct Fields {
    /// What the packet is, in a word
    #[arg(value_enum, value_name = "PROTOCOL", ignore_case = true)]
    word: Option<Word>,
    /// Source address, as 52:54:00:12:34:56, 52-54-00-12-34-56, 5254.0012.3456 or 525400123456
    #[arg(long, value_name = "MAC", required_unless_present = "frame", value_parser = parse_mac)]
    eth_src: Option<MacAddr>,
    /// Destination address [default: what an ARP request, a neighbour solicitation or an IP group's packet has]
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    eth_dst: Option<MacAddr>,
    /// EtherType, such as 0x88cc [default: what follows from the other fields, else 0x88b5, which is free for experiments]
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    eth_type: Option<u16>,
    /// VLAN id of an 802.1Q tag
    #[arg(long, value_name = "ID", value_parser = vlan, allow_negative_numbers = true)]
    vlan: Option<u16>,
    /// Source IP address
    #[arg(long, value_name = "IP")]
    ip_src: Option<IpAddr>,
    /// Destination IP address
    #[arg(long, value_name = "IP")]
    ip_dst: Option<IpAddr>,
    /// IP protocol: tcp, udp, icmp, icmpv6, sctp or a number [default: udp]
    #[arg(long, value_parser = protocol)]
    proto: Option<u8>,
    /// Source port of TCP, UDP or SCTP
    #[arg(long, value_name = "PORT")]
    sport: Option<u16>,
    /// Destination port of TCP, UDP or SCTP
    #[arg(long, value_name = "PORT")]
    dport: Option<u16>,
    /// Flags of a TCP segment: syn, ack, fin, rst, psh, urg, or none [default: syn]
    #[arg(long, value_name = "FLAG,...", value_parser = tcp_flags)]
    tcp_flags: Option<u8>,
    /// Type of an ICMP or ICMPv6 message [default: echo request]
    #[arg(long, value_name = "NUMBER")]
    icmp_type: Option<u8>,
    /// Code of an ICMP or ICMPv6 message [default: 0]
    #[arg(long, value_name = "NUMBER")]
    icmp_code: Option<u8>,
    /// What ARP does: request, reply or a number [default: request]
    #[arg(long, value_name = "OPERATION", value_parser = operation)]
    arp_op: Option<u16>,
    /// ARP's sender protocol address [default: 0.0.0.0, as in a probe]
    #[arg(long, value_name = "IPV4")]
    arp_spa: Option<Ipv4Addr>,
    /// ARP's target protocol address [default: 0.0.0.0]
    #[arg(long, value_name = "IPV4")]
    arp_tpa: Option<Ipv4Addr>,
    /// ARP's sender hardware address [default: that of --eth-src]
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    arp_sha: Option<MacAddr>,
    /// ARP's target hardware address [default: zero in a request, else that of --eth-dst]
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    arp_tha: Option<MacAddr>,
    /// Target of neighbour discovery [default: the destination of a solicitation is made from it]
    #[arg(long, value_name = "IPV6")]
    nd_target: Option<Ipv6Addr>,
}

/// A protocol named as a word of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Word {
    Arp,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    #[value(alias = "icmp6")]
    Icmpv6,
    /// Neighbour discovery
    Nd,
}

/// Decimal, or hexadecimal after 0x.
fn number(text: &str) -> Result<u16, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u16::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| "not a number from 0 to 65535; write it in decimal, or in hexadecimal after 0x".into())
}

/// 4095 stands for none, and may be traced all the same.
fn vlan(text: &str) -> Result<u16, String> {
    let vlan = text.parse().ok().filter(|vlan| *vlan <= 4095);
    vlan.ok_or_else(|| "not a VLAN id; write 1 to 4094, or 0 for a priority tag".into())
}

fn protocol(text: &str) -> Result<u8, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(TCP),
        "udp" => Ok(UDP),
        "sctp" => Ok(SCTP),
        "icmp" => Ok(ICMP),
        "icmpv6" | "icmp6" => Ok(ICMPV6),
        number => number.parse().map_err(|_| "not tcp, udp, icmp, icmpv6, sctp or a number from 0 to 255".into()),
    }
}

/// Flags of TCP's header (RFC 9293, section 3.1).
fn tcp_flags(text: &str) -> Result<u8, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(0);
    }
    text.split(',').try_fold(0, |flags, flag| {
        let known = ["fin", "syn", "rst", "psh", "ack", "urg"].iter().position(|name| name.eq_ignore_ascii_case(flag));
        known.map(|bit| flags | 1 << bit).ok_or_else(|| {
            format!(
                "there is no flag {flag:?}; write some of syn, ack, fin, rst, psh and urg, such as syn,ack, or none"
            )
        })
    })
}

fn operation(text: &str) -> Result<u16, String> {
    match text {
        "request" => Ok(1),
        "reply" => Ok(2),
        other => number(other).map_err(|_| "not request, reply or a number from 0 to 65535".into()),
    }
}

/// What an option says about the packet: which EtherTypes and IP protocols it may have with it. Empty: any.
struct Claim {
    option: String,
    ethers: Vec<u16>,
    protos: Vec<u8>,
}

fn ether_name(ether: u16) -> String {
    match ether {
        ARP => "ARP".into(),
        IPV4 => "IPv4".into(),
        IPV6 => "IPv6".into(),
        other => format!("EtherType {other:#06x}"),
    }
}

fn proto_name(proto: u8) -> String {
    match proto {
        ICMP => "ICMP".into(),
        TCP => "TCP".into(),
        UDP => "UDP".into(),
        ICMPV6 => "ICMPv6".into(),
        SCTP => "SCTP".into(),
        other => format!("IP protocol {other}"),
    }
}

fn any_of<T: Copy>(choices: &[T], name: impl Fn(T) -> String) -> String {
    choices.iter().map(|choice| name(*choice)).collect::<Vec<_>>().join(" or ")
}

/// The choices that all leave; an error names the first two that leave none.
fn agree<T: Copy + PartialEq>(
    claims: &[Claim],
    choices: impl Fn(&Claim) -> &Vec<T>,
    name: impl Fn(T) -> String,
) -> Result<Vec<T>, CliError> {
    let mut left: Vec<T> = Vec::new();
    for (n, b) in claims.iter().enumerate().filter(|(_, claim)| !choices(claim).is_empty()) {
        for a in claims.iter().take(n).filter(|a| !choices(a).is_empty()) {
            if !choices(a).iter().any(|choice| choices(b).contains(choice)) {
                return Err(contradiction(a, &any_of(choices(a), &name), b, &any_of(choices(b), &name)));
            }
        }
        if left.is_empty() {
            left.clone_from(choices(b));
        }
        left.retain(|choice| choices(b).contains(choice));
    }
    Ok(left)
}

fn contradiction(a: &Claim, of_a: &str, b: &Claim, of_b: &str) -> CliError {
    let (a_option, b_option) = (&a.option, &b.option);
    let arp = a.ethers == [ARP] || b.ethers == [ARP];
    let hint = if arp && (a_option.starts_with("--ip-") || b_option.starts_with("--ip-")) {
        "; the addresses of ARP are --arp-spa and --arp-tpa"
    } else {
        ""
    };
    CliError::usage(format!(
        "{a_option} and {b_option} contradict each other: the first is for {of_a}, the second for {of_b}; leave one of \
         them out{hint}"
    ))
}

impl Fields {
    /// A frame with these fields, without payload.
    pub fn frame(&self) -> Result<Vec<u8>, CliError> {
        let claims = self.claims();
        let ethers = agree(&claims, |claim| &claim.ethers, ether_name)?;
        let protos = agree(&claims, |claim| &claim.protos, proto_name)?;
        self.check_discovery()?;
        let (eth_type, eth_dst, payload) = match ethers[..] {
            [ARP] => self.arp(),
            [tag] if TAGS.contains(&tag) => {
                return Err(CliError::usage(format!(
                    "--eth-type {tag:#06x} is that of a VLAN tag; write --vlan ID, or the whole frame with --frame"
                )));
            }
            [other] if other != IPV4 && other != IPV6 => (other, None, Vec::new()),
            [] => (EXPERIMENTAL, None, Vec::new()),
            _ => self.ip(&claims, &protos)?,
        };
        let Some(eth_dst) = self.eth_dst.or(eth_dst) else {
            return Err(CliError::usage("the destination is missing; add --eth-dst MAC"));
        };
        let mut frame = [eth_dst.0, self.eth_src.unwrap_or_default().0].concat();
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend(eth_type.to_be_bytes());
        frame.extend(payload);
        Ok(frame)
    }

    /// What each option that was given says, in the order of the help.
    fn claims(&self) -> Vec<Claim> {
        const IP: &[u16] = &[IPV4, IPV6];
        let mut claims = Vec::new();
        let mut claim = |option: String, ethers: &[u16], protos: &[u8]| {
            claims.push(Claim { option, ethers: ethers.into(), protos: protos.into() });
        };
        let of_proto = |proto: u8| match proto {
            ICMP => &[IPV4][..],
            ICMPV6 => &[IPV6],
            _ => IP,
        };
        match self.word {
            None => {}
            Some(Word::Arp) => claim("arp".into(), &[ARP], &[]),
            Some(Word::Tcp) => claim("tcp".into(), IP, &[TCP]),
            Some(Word::Udp) => claim("udp".into(), IP, &[UDP]),
            Some(Word::Sctp) => claim("sctp".into(), IP, &[SCTP]),
            Some(Word::Icmp) => claim("icmp".into(), &[IPV4], &[ICMP]),
            Some(Word::Icmpv6) => claim("icmpv6".into(), &[IPV6], &[ICMPV6]),
            Some(Word::Nd) => claim("nd".into(), &[IPV6], &[ICMPV6]),
        }
        if let Some(eth_type) = self.eth_type {
            claim(format!("--eth-type {eth_type:#06x}"), &[eth_type], &[]);
        }
        for (name, address) in [("--ip-src", self.ip_src), ("--ip-dst", self.ip_dst)] {
            if let Some(address) = address {
                claim(format!("{name} {address}"), &[if address.is_ipv4() { IPV4 } else { IPV6 }], &[]);
            }
        }
        if let Some(proto) = self.proto {
            claim(format!("--proto {proto}"), of_proto(proto), &[proto]);
        }
        for (name, port) in [("--sport", self.sport), ("--dport", self.dport)] {
            if let Some(port) = port {
                claim(format!("{name} {port}"), IP, &[UDP, TCP, SCTP]);
            }
        }
        if self.tcp_flags.is_some() {
            claim("--tcp-flags".into(), IP, &[TCP]);
        }
        if let Some(kind) = self.icmp_type {
            // The types of neighbour discovery are ICMPv6's alone; ICMP has nothing there.
            let (ethers, protos) =
                if discovers(kind) { (&[IPV6][..], &[ICMPV6][..]) } else { (IP, &[ICMP, ICMPV6][..]) };
            claim(format!("--icmp-type {kind}"), ethers, protos);
        }
        if let Some(code) = self.icmp_code {
            claim(format!("--icmp-code {code}"), IP, &[ICMP, ICMPV6]);
        }
        for (name, given) in [
            ("--arp-op", shown(&self.arp_op)),
            ("--arp-spa", shown(&self.arp_spa)),
            ("--arp-tpa", shown(&self.arp_tpa)),
            ("--arp-sha", shown(&self.arp_sha)),
            ("--arp-tha", shown(&self.arp_tha)),
        ] {
            if let Some(value) = given {
                claim(format!("{name} {value}"), &[ARP], &[]);
            }
        }
        if let Some(target) = self.nd_target {
            claim(format!("--nd-target {target}"), &[IPV6], &[ICMPV6]);
        }
        claims
    }

    /// Whether it is a message of neighbour discovery.
    fn is_discovery(&self) -> bool {
        self.word == Some(Word::Nd) || self.nd_target.is_some() || self.icmp_type.is_some_and(discovers)
    }

    /// Neighbour discovery is two of ICMPv6's types, and those without a code.
    fn check_discovery(&self) -> Result<(), CliError> {
        let option = match (self.word, self.icmp_type) {
            (Some(Word::Nd), _) => "nd".to_owned(),
            (_, Some(kind)) if discovers(kind) => format!("--icmp-type {kind}"),
            _ => "--nd-target".to_owned(),
        };
        match (self.icmp_type, self.icmp_code) {
            _ if !self.is_discovery() => Ok(()),
            (Some(kind), _) if !discovers(kind) => Err(CliError::usage(format!(
                "{option} and --icmp-type {kind} contradict each other: neighbour discovery has type 135 (solicitation) or \
                 136 (advertisement); leave one of them out"
            ))),
            (_, Some(code)) if code != 0 => Err(CliError::usage(format!(
                "{option} and --icmp-code {code} contradict each other: neighbour discovery has code 0; leave one of them out"
            ))),
            _ if self.nd_target.is_none() => Err(CliError::usage(format!(
                "{option} is neighbour discovery, and that asks for a neighbour: add --nd-target IPV6, or give the whole frame \
                 with --frame"
            ))),
            _ => Ok(()),
        }
    }

    /// RFC 826.
    fn arp(&self) -> (u16, Option<MacAddr>, Vec<u8>) {
        let operation = self.arp_op.unwrap_or(1);
        let request = operation == 1;
        let target = self.eth_dst.filter(|_| !request).unwrap_or_default();
        let mut packet = vec![0, 1, 8, 0, 6, 4];
        packet.extend(operation.to_be_bytes());
        packet.extend(self.arp_sha.or(self.eth_src).unwrap_or_default().0);
        packet.extend(self.arp_spa.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        packet.extend(self.arp_tha.unwrap_or(target).0);
        packet.extend(self.arp_tpa.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        (ARP, request.then_some(MacAddr::BROADCAST), packet)
    }

    fn ip(&self, claims: &[Claim], protos: &[u8]) -> Result<(u16, Option<MacAddr>, Vec<u8>), CliError> {
        let kind = self.icmp_type.unwrap_or(SOLICITATION);
        // A solicitation goes to the group of those whose address ends as the target does (RFC 4291, section 2.7.1).
        let group = self.nd_target.filter(|_| kind == SOLICITATION).map(|target| {
            let [.., a, b, c] = target.octets();
            IpAddr::V6(Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]))
        });
        let (Some(src), Some(dst)) = (self.ip_src, self.ip_dst.or(group)) else {
            let option = claims.first().map_or("an IP packet", |claim| &claim.option);
            return Err(CliError::usage(format!(
                "{option} needs addresses; give --ip-src and --ip-dst, or the whole frame with --frame"
            )));
        };
        let proto = match protos {
            [] => UDP,
            [ICMP, ICMPV6] if src.is_ipv6() => ICMPV6,
            [first, ..] => *first,
        };
        let transport = self.transport(proto);
        // Shorter than a hundred bytes.
        let length = transport.len() as u16;
        let ttl = if self.is_discovery() { 255 } else { 64 };
        let mut packet = Vec::new();
        let eth_type = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                packet.extend([0x45, 0]);
                packet.extend((length + 20).to_be_bytes());
                packet.extend([0, 0, 0, 0, ttl, proto, 0, 0]);
                packet.extend(src.octets());
                packet.extend(dst.octets());
                let words = packet.chunks(2).map(|w| w.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
                let sum: u32 = words.sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
                packet.splice(10..12, sum.to_be_bytes());
                IPV4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                packet.extend([0x60, 0, 0, 0]);
                packet.extend(length.to_be_bytes());
                packet.extend([proto, ttl]);
                packet.extend(src.octets());
                packet.extend(dst.octets());
                IPV6
            }
            // The claims of both addresses agree, and the group's is IPv6 as its target is.
            _ => {
                return Err(CliError::usage(
                    "--ip-src and --ip-dst are of different IP versions; give two of one version",
                ));
            }
        };
        packet.extend(transport);
        Ok((eth_type, group_address(dst), packet))
    }

    fn transport(&self, proto: u8) -> Vec<u8> {
        let (source, destination) = (self.sport.unwrap_or(0), self.dport.unwrap_or(0));
        let flags = self.tcp_flags.unwrap_or(SYN);
        let rest: &[u8] = match proto {
            TCP => &[0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0],
            UDP => &[0, 8, 0, 0],
            SCTP => &[0; 8],
            ICMPV6 if self.is_discovery() => return self.discovery(),
            ICMP | ICMPV6 => {
                let echo = if proto == ICMP { 8 } else { 128 };
                return vec![self.icmp_type.unwrap_or(echo), self.icmp_code.unwrap_or(0), 0, 0, 0, 0, 0, 0];
            }
            _ => return Vec::new(),
        };
        [&source.to_be_bytes(), &destination.to_be_bytes(), rest].concat()
    }

    /// RFC 4861, sections 4.3 and 4.4, with the option that tells the sender's link-layer address.
    fn discovery(&self) -> Vec<u8> {
        let kind = self.icmp_type.unwrap_or(SOLICITATION);
        let (flags, option) = if kind == SOLICITATION { (0, 1) } else { (0x60, 2) };
        let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        message.extend(self.nd_target.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        message.extend([option, 1]);
        message.extend(self.eth_src.unwrap_or_default().0);
        message
    }
}

/// Whether a message of this type is one of neighbour discovery.
fn discovers(kind: u8) -> bool {
    kind == SOLICITATION || kind == ADVERTISEMENT
}

fn shown(value: &Option<impl Display>) -> Option<String> {
    value.as_ref().map(ToString::to_string)
}

/// The Ethernet address of a group of hosts (RFC 1112, RFC 2464).
fn group_address(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(ip) if ip.is_broadcast() => Some(MacAddr::BROADCAST),
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, a, b, c] = ip.octets();
            Some(MacAddr([1, 0, 0x5e, a & 0x7f, b, c]))
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let [.., a, b, c, d] = ip.octets();
            Some(MacAddr([0x33, 0x33, a, b, c, d]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::TraceArgs;
    use lasthop_frame::{Depth, FlowKey, extract};

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn frame(options: &str) -> Result<Vec<u8>, String> {
        use clap::Parser;
        let line = "trace --in-port p --eth-src 52:54:00:00:00:01 ".to_owned() + options;
        Line::try_parse_from(line.split_whitespace()).unwrap().args.fields.frame().map_err(|e| e.to_string())
    }

    fn key(options: &str) -> FlowKey {
        let frame = frame(options).unwrap();
        let mut key = FlowKey::default();
        extract(&mut key, &frame, frame.len(), Depth::Full);
        assert_eq!(key.anomalies, 0, "{options}: the switch finds fault with the frame");
        key
    }

    #[test]
    fn a_segment_may_have_other_flags_than_a_syn() {
        let of = |flags: &str| {
            let options =
                format!("tcp --eth-dst 52-54-00-00-00-02 --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --tcp-flags {flags}");
            key(&options).tcp_flags
        };
        assert_eq!((of("syn,ack"), of("RST"), of("fin,psh,urg"), of("none")), (0x12, 4, 0x29, 0));
        assert!(super::tcp_flags("syn,akc").unwrap_err().contains("there is no flag \"akc\""));
        let wrong = frame("udp --eth-dst 52-54-00-00-00-02 --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --tcp-flags ack");
        assert!(wrong.unwrap_err().contains("--tcp-flags contradict"));
    }

    #[test]
    fn the_switch_reads_what_was_written() {
        let key = |options: &str| key(&format!("--eth-dst 52-54-00-00-00-02 {options}"));
        let k = key("--vlan 5 --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto tcp --sport 7 --dport 80");
        assert_eq!((k.eth_type, k.vlan_tci, k.ip_proto, k.l4_src, k.l4_dst), (0x0800, 0x1005, 6, 7, 80));
        assert_eq!((k.ip_src[12..].to_vec(), k.tcp_flags), (vec![10, 0, 0, 1], 2));
        let k = key("--ip-src fd00::1 --ip-dst fd00::2 --dport 53");
        assert_eq!((k.eth_type, k.ip_proto, k.l4_dst, k.ip_src[15]), (0x86dd, 17, 53, 1));
        assert_eq!(key("--ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto icmp").l4_src, 8);
        assert_eq!(key("--ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto sctp --dport 9").l4_dst, 9);
        assert_eq!(key("--eth-type 0x88cc").eth_type, 0x88cc);
        assert_eq!(key("").eth_type, 0x88b5);
        // Words stand for protocols, whatever the addresses' version.
        assert_eq!(key("tcp --ip-src fd00::1 --ip-dst fd00::2").ip_proto, 6);
        assert_eq!(key("udp --eth-type 0x0800 --ip-src 1.2.3.4 --ip-dst 1.2.3.5 --dport 53").l4_dst, 53);
        let k = key("icmp --ip-src 1.2.3.4 --ip-dst 1.2.3.5 --icmp-type 3 --icmp-code 1");
        assert_eq!((k.ip_proto, k.l4_src, k.l4_dst), (1, 3, 1));
        let k = key("icmp6 --ip-src fd00::1 --ip-dst fd00::2");
        assert_eq!((k.ip_proto, k.l4_src), (58, 128));
        assert_eq!(key("--icmp-type 129 --ip-src fd00::1 --ip-dst fd00::2").ip_proto, 58);
    }

    #[test]
    fn arp_is_arp() {
        let k = key("arp --arp-spa 10.0.0.1 --arp-tpa 10.0.0.2");
        assert_eq!((k.eth_type, k.eth_dst, k.ip_proto), (0x0806, [0xff; 6], 1));
        assert_eq!((&k.ip_src[12..], &k.ip_dst[12..]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert_eq!((k.arp_sha, k.arp_tha), (k.eth_src, [0; 6]));
        for same in ["--eth-type 0x0806 --arp-spa 10.0.0.1 --arp-tpa 10.0.0.2", "--arp-spa 10.0.0.1 --arp-tpa 10.0.0.2"]
        {
            assert_eq!(key(same), k, "{same}");
        }
        let k = key("arp --arp-op reply --eth-dst 5254.0000.0002 --arp-sha 52:54:00:00:00:0A");
        assert_eq!((k.ip_proto, k.eth_dst[5], k.arp_sha[5], k.arp_tha[5]), (2, 2, 10, 2));
        assert_eq!(key("arp").eth_type, 0x0806, "a probe of nothing");
    }

    #[test]
    fn neighbours_are_discovered() {
        let k = key("nd --ip-src fe80::1 --nd-target fd00::12:3456");
        assert_eq!((k.eth_dst, k.l4_src, k.ip_ttl), ([0x33, 0x33, 0xff, 0x12, 0x34, 0x56], 135, 255));
        assert_eq!((k.nd_target[15], k.arp_sha, k.arp_tha), (0x56, k.eth_src, [0; 6]));
        let by_number = key("icmpv6 --icmp-type 135 --ip-src fe80::1 --nd-target fd00::12:3456");
        assert_eq!(by_number, k, "by its number");
        assert_eq!(key("--icmp-type 135 --ip-src fe80::1 --nd-target fd00::12:3456"), k);
        let k = key("nd --icmp-type 136 --ip-src fe80::1 --ip-dst ff02::1 --nd-target fe80::1");
        assert_eq!((k.eth_dst, k.l4_src, k.arp_tha), ([0x33, 0x33, 0, 0, 0, 1], 136, k.eth_src));
    }

    /// The error names both, whichever way round they are given.
    #[test]
    fn contradictions_are_refused() {
        let v4 = "--ip-src 10.0.0.1 --ip-dst 10.0.0.2";
        for (options, one, other) in [
            ("--eth-type 0x0806 --ip-src 10.0.0.1 --ip-dst 10.0.0.2", "--eth-type 0x0806", "--ip-src 10.0.0.1"),
            ("arp --ip-src 10.0.0.1", "arp and", "--ip-src 10.0.0.1"),
            ("--ip-src 10.0.0.1 --ip-dst fd00::2", "--ip-src 10.0.0.1", "--ip-dst fd00::2"),
            ("tcp --arp-spa 10.0.0.1", "tcp and", "--arp-spa 10.0.0.1"),
            ("tcp --proto udp", "tcp and", "--proto 17"),
            ("icmp --dport 5", "icmp and", "--dport 5"),
            ("icmp --ip-src fd00::1 --ip-dst fd00::2", "icmp and", "--ip-src fd00::1"),
            ("--eth-type 0x86dd --ip-src 10.0.0.1 --ip-dst 10.0.0.2", "--eth-type 0x86dd", "--ip-src 10.0.0.1"),
            ("--proto 47 --dport 5", "--proto 47", "--dport 5"),
            ("udp --icmp-type 8", "udp and", "--icmp-type 8"),
            ("icmp --nd-target fd00::1", "icmp and", "--nd-target fd00::1"),
            ("nd --icmp-type 128", "nd and", "--icmp-type 128"),
            ("nd --icmp-code 1", "nd and", "--icmp-code 1"),
            ("icmpv6 --icmp-type 135 --icmp-code 1", "--icmp-type 135 and", "--icmp-code 1"),
            ("icmp --icmp-type 135", "icmp and", "--icmp-type 135"),
            ("--icmp-type 136 --ip-src 10.0.0.1", "--ip-src 10.0.0.1 and", "--icmp-type 136"),
            ("arp --eth-type 0x0800", "arp and", "--eth-type 0x0800"),
        ] {
            let error = frame(options).unwrap_err();
            assert!(error.contains("contradict each other"), "{options}: {error}");
            assert!(error.contains(one) && error.contains(other), "{options}: {error}");
        }
        assert!(frame(&format!("--eth-type 0x0806 {v4}")).unwrap_err().contains("--arp-spa"));
        for (options, missing) in [
            ("tcp", "tcp needs addresses"),
            ("--eth-type 0x0800", "--eth-type 0x0800 needs addresses"),
            ("--ip-src 10.0.0.1", "needs addresses"),
            ("nd --ip-src fe80::1", "nd is neighbour discovery, and that asks for a neighbour: add --nd-target"),
            ("icmpv6 --icmp-type 135 --ip-src fe80::1", "--icmp-type 135 is neighbour discovery"),
            (v4, "add --eth-dst"),
            ("--eth-type 0x8100 --eth-dst 52:54:00:00:00:02", "--vlan ID"),
        ] {
            let error = frame(options).unwrap_err();
            assert!(error.contains(missing), "{options}: {error}");
        }
    }
}
