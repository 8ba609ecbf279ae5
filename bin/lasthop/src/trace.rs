//! `lasthop trace`: what would happen to a packet.

use crate::SharedArgs;
use crate::client::CliError;
use crate::list::{fields, outputs};
use crate::table::duration;
use lasthop_api::{SwitchProxy, TraceReport};
use lasthop_types::MacAddr;
use std::net::IpAddr;

#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// Port the packet would come from
    #[arg(long, value_name = "NAME")]
    in_port: String,
    /// The whole frame, or its beginning, in hexadecimal digits from the Ethernet header on
    #[arg(long, value_name = "HEX", conflicts_with = "Fields")]
    frame: Option<String>,
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, clap::Args)]
struct Fields {
    /// Source address
    #[arg(long, value_name = "MAC", required_unless_present = "frame")]
    eth_src: Option<MacAddr>,
    /// Destination address
    #[arg(long, value_name = "MAC", required_unless_present = "frame")]
    eth_dst: Option<MacAddr>,
    /// EtherType, such as 0x0806 [default: that of the addresses given with --ip-src, else 0x88b5, which is free for experiments]
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    eth_type: Option<u16>,
    /// VLAN id of an 802.1Q tag
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(0..4096))]
    vlan: Option<u16>,
    /// Source IP address
    #[arg(long, value_name = "IP", requires = "ip_dst")]
    ip_src: Option<IpAddr>,
    /// Destination IP address
    #[arg(long, value_name = "IP", requires = "ip_src")]
    ip_dst: Option<IpAddr>,
    /// IP protocol: tcp, udp, icmp, sctp or a number [default: udp]
    #[arg(long, requires = "ip_src", value_parser = protocol)]
    proto: Option<u8>,
    /// Source port of TCP, UDP or SCTP
    #[arg(long, value_name = "PORT", requires = "ip_src")]
    sport: Option<u16>,
    /// Destination port of TCP, UDP or SCTP
    #[arg(long, value_name = "PORT", requires = "ip_src")]
    dport: Option<u16>,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Decimal, or hexadecimal after 0x.
fn number(text: &str) -> Result<u16, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| "not a number from 0 to 65535; write it in decimal, or in hexadecimal after 0x".into())
}

fn protocol(text: &str) -> Result<u8, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(TCP),
        "udp" => Ok(UDP),
        "sctp" => Ok(SCTP),
        "icmp" => Ok(1),
        "icmpv6" => Ok(58),
        number => number.parse().map_err(|_| "not tcp, udp, icmp, icmpv6, sctp or a number from 0 to 255".into()),
    }
}

impl Fields {
    /// A frame with these fields, without payload.
    fn frame(&self) -> Result<Vec<u8>, CliError> {
        let mut frame = Vec::new();
        frame.extend(self.eth_dst.unwrap_or_default().0);
        frame.extend(self.eth_src.unwrap_or_default().0);
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        let ip = match (self.ip_src, self.ip_dst) {
            (Some(src), Some(dst)) => Some(self.ip_packet(src, dst)?),
            _ => None,
        };
        let (default, packet) = ip.unwrap_or((0x88b5, Vec::new()));
        frame.extend(self.eth_type.unwrap_or(default).to_be_bytes());
        frame.extend(packet);
        Ok(frame)
    }

    fn ip_packet(&self, src: IpAddr, dst: IpAddr) -> Result<(u16, Vec<u8>), CliError> {
        let proto = self.proto.unwrap_or(UDP);
        let transport = self.transport(proto)?;
        let length = u16::try_from(transport.len()).unwrap_or(u16::MAX);
        let mut packet = Vec::new();
        let eth_type = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                packet.extend([0x45, 0]);
                packet.extend((length + 20).to_be_bytes());
                packet.extend([0, 0, 0, 0, 64, proto, 0, 0]);
                packet.extend(src.octets());
                packet.extend(dst.octets());
                let words = packet.chunks(2).map(|w| w.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
                let sum: u32 = words.sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
                packet.splice(10..12, sum.to_be_bytes());
                0x0800
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                packet.extend([0x60, 0, 0, 0]);
                packet.extend(length.to_be_bytes());
                packet.extend([proto, 64]);
                packet.extend(src.octets());
                packet.extend(dst.octets());
                0x86dd
            }
            _ => {
                let text = "--ip-src and --ip-dst are of different IP versions; give two IPv4 or two IPv6 addresses";
                return Err(CliError::new(text));
            }
        };
        packet.extend(transport);
        Ok((eth_type, packet))
    }

    fn transport(&self, proto: u8) -> Result<Vec<u8>, CliError> {
        let ports = self.sport.or(self.dport).is_some();
        let (source, destination) = (self.sport.unwrap_or(0), self.dport.unwrap_or(0));
        let rest: &[u8] = match proto {
            TCP => &[0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0],
            UDP => &[0, 8, 0, 0],
            SCTP => &[0; 8],
            _ if ports => {
                return Err(CliError::new(format!(
                    "IP protocol {proto} has no ports; leave out --sport and --dport, or use --proto tcp, udp or sctp"
                )));
            }
            1 | 58 => return Ok(vec![8, 0, 0, 0, 0, 0, 0, 0]),
            _ => return Ok(Vec::new()),
        };
        Ok([&source.to_be_bytes(), &destination.to_be_bytes(), rest].concat())
    }
}

pub fn trace(args: &TraceArgs) -> Result<String, CliError> {
    let frame = match &args.frame {
        Some(frame) => frame.clone(),
        None => args.fields.frame()?.iter().map(|b| format!("{b:02x}")).collect(),
    };
    let report = args.shared.instance()?.ask(async |c| c.trace(&args.in_port, &frame).await)?;
    args.shared.show(&report, render)
}

fn render(report: &TraceReport) -> String {
    let mut lines = vec![("packet", fields(&report.key))];
    match &report.flow {
        Some(f) => {
            lines.push(("flow", fields(&f.fields)));
            lines.push((
                "",
                format!("to {} ({} packets, idle {})", outputs(&f.outputs), f.packets, duration(f.idle_ms)),
            ));
        }
        None => lines.push(("flow", "none: the packet would wait for control, which decides as follows".into())),
    }
    for (n, reason) in report.reasons.iter().enumerate() {
        lines.push((if n == 0 { "policy" } else { "" }, reason.clone()));
    }
    if report.outputs.is_empty() {
        lines.push(("result", "dropped".into()));
    }
    for (n, output) in report.outputs.iter().enumerate() {
        let text = match &output.drop {
            None => format!("delivered to {}, which is {}", output.port, output.state),
            Some(reason) => format!("dropped at {}, which is {} ({reason})", output.port, output.state),
        };
        lines.push((if n == 0 { "result" } else { "" }, text));
    }
    lines.iter().map(|(name, text)| format!("{name:<7} {text}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_frame::{Depth, FlowKey, extract};

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn key(options: &str) -> FlowKey {
        use clap::Parser;
        let line = "trace --in-port p --eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02 ";
        let line = Line::try_parse_from((line.to_owned() + options).split_whitespace()).unwrap();
        let frame = line.args.fields.frame().unwrap();
        let mut key = FlowKey::default();
        extract(&mut key, &frame, frame.len(), Depth::Full);
        assert_eq!(key.anomalies, 0, "{options}: the switch finds fault with the frame");
        key
    }

    #[test]
    fn the_switch_reads_what_was_written() {
        let k = key("--vlan 5 --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto tcp --sport 7 --dport 80");
        assert_eq!((k.eth_type, k.vlan_tci, k.ip_proto, k.l4_src, k.l4_dst), (0x0800, 0x1005, 6, 7, 80));
        assert_eq!((k.ip_src[12..].to_vec(), k.tcp_flags), (vec![10, 0, 0, 1], 2));
        let k = key("--ip-src fd00::1 --ip-dst fd00::2 --dport 53");
        assert_eq!((k.eth_type, k.ip_proto, k.l4_dst, k.ip_src[15]), (0x86dd, 17, 53, 1));
        assert_eq!(key("--ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto icmp").l4_src, 8);
        assert_eq!(key("--ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto sctp --dport 9").l4_dst, 9);
        assert_eq!(key("--eth-type 0x88cc").eth_type, 0x88cc);
        assert_eq!(key("").eth_type, 0x88b5);
    }
}
