//! `lasthop trace`: what would happen to a packet.

use crate::SharedArgs;
use crate::client::CliError;
use crate::list::{fields, outputs};
use crate::table::duration;
use lasthop_api::{SwitchProxy, TraceReport};
use lasthop_text::counted;
use packet::Fields;

mod packet;

#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// Port the packet would come from
    #[arg(long, value_name = "NAME", add = crate::completions::ports())]
    in_port: String,
    /// The whole frame, or its beginning, in hexadecimal digits from the Ethernet header on
    #[arg(long, value_name = "HEX", conflicts_with = "Fields", value_parser = hexadecimal)]
    frame: Option<String>,
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    shared: SharedArgs,
}

/// The digits as they are; no frame, if they make none.
fn hexadecimal(text: &str) -> Result<String, String> {
    lasthop_api::parse_frame(text).map(|_| text.to_owned())
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
                format!("to {} ({}, idle {})", outputs(&f.outputs), counted(f.packets, "packet"), duration(f.idle_ms)),
            ));
        }
        None if report.nobody => lines.push(("flow", "none, and nobody of Open vSwitch's is there to decide".into())),
        None if report.undecided => lines.push(("flow", "none: the packet would wait for Open vSwitch".into())),
        None => lines.push(("flow", "none: the packet would wait for control, which decides as follows".into())),
    }
    for (n, reason) in report.reasons.iter().enumerate() {
        lines.push((if n == 0 { "policy" } else { "" }, reason.clone()));
    }
    if report.nobody {
        lines.push(("result", "dropped (miss_timeout): Open vSwitch is not there".into()));
    } else if report.undecided {
        lines.push(("result", "not known: Open vSwitch has not been asked".into()));
    } else if report.outputs.is_empty() {
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

    /// What Open vSwitch would do with a packet that meets no flow was `dropped`.
    #[test]
    fn a_packet_that_nobody_has_decided_about_is_not_dropped() {
        let report = |undecided| render(&TraceReport { undecided, ..TraceReport::default() });
        assert!(report(false).ends_with("result  dropped\n"), "{}", report(false));
        assert!(report(true).ends_with("result  not known: Open vSwitch has not been asked\n"), "{}", report(true));
        let away = render(&TraceReport { undecided: true, nobody: true, ..TraceReport::default() });
        assert!(away.ends_with("result  dropped (miss_timeout): Open vSwitch is not there\n"), "{away}");
    }
}
