//! The one program inside a test VM besides busybox and iperf3: the agent that runs the host's commands, and traffic
//! tools that check what they receive byte for byte. Linked statically, so the initramfs needs no libraries for it.

mod agent;
mod content;
mod multicast;
mod raw;
mod tcp;
mod udp;

use std::process::ExitCode;

/// What every tool returns: one line for stdout, or what went wrong.
type Outcome = Result<String, String>;

const USAGE: &str = "\
lasthop-guest agent DEVICE                                run the host's commands, read from a serial line
lasthop-guest tcp-serve PORT                              answer tcp-check and tcp-transactions, take tcp-push, for ever
lasthop-guest tcp-check ADDR:PORT MAX STRIDE              messages of 1..=MAX bytes there and back, compared
lasthop-guest tcp-push ADDR:PORT SECONDS [FILE]           one stream with known content, until there is this file; the server checks it
lasthop-guest tcp-transactions ADDR:PORT SECONDS [BYTES]  one byte, or so many, there and back, one at a time; how many
lasthop-guest udp-serve PORT                              echo datagrams after checking them, for ever
lasthop-guest udp-check ADDR:PORT MAX STRIDE              datagrams of 16..=MAX bytes there and back, compared
lasthop-guest udp-late ADDR:PORT SECONDS WAIT             one datagram that the server answers so late; waits for that
lasthop-guest raw-send IFACE DST ETHERTYPE COUNT MIN MAX PAUSE_US
                                                          numbered frames of MIN..=MAX bytes
lasthop-guest raw-recv IFACE ETHERTYPE COUNT IDLE_SECONDS count, and find lost, repeated, reordered, damaged ones
lasthop-guest group-recv ADDR PORT BYTES SECONDS          wait for one datagram to a multicast or broadcast address
lasthop-guest group-send ADDR PORT BYTES COUNT IFINDEX    send it";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["agent", device] => agent::serve(device),
        ["tcp-serve", port] => number(port).and_then(tcp::serve),
        ["tcp-check", to, max, stride] => number(max).and_then(|max| tcp::check(to, max, number(stride)?)),
        ["tcp-push", to, seconds] => number(seconds).and_then(|s| tcp::push(to, s, None)),
        ["tcp-push", to, seconds, enough] => number(seconds).and_then(|s| tcp::push(to, s, Some(enough))),
        ["tcp-transactions", to, seconds] => number(seconds).and_then(|s| tcp::transactions(to, s, 1)),
        ["tcp-transactions", to, seconds, bytes] => {
            number(seconds).and_then(|s| tcp::transactions(to, s, number(bytes)?))
        }
        ["udp-serve", port] => number(port).and_then(udp::serve),
        ["udp-check", to, max, stride] => number(max).and_then(|max| udp::check(to, max, number(stride)?)),
        ["udp-late", to, seconds, wait] => number(seconds).and_then(|s| udp::late(to, s, number(wait)?)),
        ["raw-send", iface, dst, ethertype, count, min, max, pause] => raw::Flood::parse(dst, ethertype)
            .and_then(|f| f.send(iface, number(count)?, number(min)?..=number(max)?, number(pause)?)),
        ["raw-recv", iface, ethertype, count, idle] => {
            raw::ethertype(ethertype).and_then(|t| raw::receive(iface, t, number(count)?, number(idle)?))
        }
        ["group-recv", addr, port, bytes, seconds] => {
            number(port).and_then(|p| multicast::receive(addr, p, number(bytes)?, number(seconds)?))
        }
        ["group-send", addr, port, bytes, count, ifindex] => {
            number(port).and_then(|p| multicast::send(addr, p, number(bytes)?, number(count)?, number(ifindex)?))
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// A decimal number, or an error that says which word is none.
fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is not a number in range"))
}
