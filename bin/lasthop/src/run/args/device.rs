//! `--device`.

use super::super::dma;
use super::super::store::SavedUplink;
use super::parse_uplink_arg;
use lasthop_api::Bus;
use lasthop_policy::{OF_UPLINKS, check_name};
use lasthop_sys::{CpuList, ParseCpusError};

/// The name of a device's wire, and of its port.
pub const WIRE: &str = "wire";

/// One `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceArg {
    /// Name; checked.
    pub name: String,
    /// Places of its table of rules.
    pub rules: usize,
    /// CPUs that its engines have for themselves, if any.
    pub engines: Option<CpuList>,
    /// Whether its ports and those of the host reach each other.
    pub cable: bool,
    /// Whether it walks control's table of all flows before it asks control.
    pub walk: bool,
    /// Whether a DMA engine copies for it.
    pub dma: bool,
    /// Copies of up to so many bytes are not that engine's.
    pub dma_threshold: usize,
    /// The bus that it would be behind, if one is named.
    pub bus: Option<Bus>,
    /// The uplink of its own that it has, if it has one: checked, and as `--uplink` has it.
    pub wire: Option<(SavedUplink, String)>,
}

/// What a TCAM of a card may have.
const RULES: std::ops::RangeInclusive<usize> = 16..=65_536;

pub fn parse_device(text: &str) -> Result<DeviceArg, String> {
    let mut words = text.split(',');
    let name = words.next().unwrap_or_default().to_owned();
    check_name(&name)?;
    let (walk, dma, dma_threshold, cable) = (false, false, dma::THRESHOLD, true);
    let mut device =
        DeviceArg { name, rules: 1024, engines: None, cable, walk, dma, dma_threshold, bus: None, wire: None };
    for word in words {
        match word.split_once('=') {
            Some(("rules", n)) => {
                let rules = n.parse().ok().filter(|n| RULES.contains(n));
                device.rules = rules
                    .ok_or_else(|| format!("{word}: no number of rules; use {} to {}", RULES.start(), RULES.end()))?;
            }
            Some(("engines", list)) => {
                // A comma ends a value on the command line.
                let list = list.replace(':', ",").parse().map_err(|e: ParseCpusError| format!("{word}: {e}"))?;
                device.engines = Some(list);
            }
            Some(("cable", "off")) => device.cable = false,
            Some(("walk", "on")) => device.walk = true,
            Some(("walk", "off")) => device.walk = false,
            Some(("dma", engine)) => device.dma = dma::is_wanted(engine)?,
            Some(("bus", bus)) => device.bus = Some(bus.parse()?),
            Some(("dma-threshold", bytes)) => device.dma_threshold = dma::threshold(bytes)?,
            Some(("wire", _)) if device.wire.is_some() => {
                return Err(format!(
                    "{word}: a device has one wire; add others with `lasthop uplink add --run-dir` when it runs"
                ));
            }
            Some(("wire", wire)) => device.wire = Some(parse_wire(wire).map_err(|e| format!("{word}: {e}"))?),
            _ => return Err(unknown(word, &device)),
        }
    }
    Ok(device)
}

fn unknown(word: &str, device: &DeviceArg) -> String {
    let hint = if word.starts_with(|c: char| c.is_ascii_digit()) {
        "write ':' between CPUs; "
    } else if device.wire.is_some() && is_of_uplinks(word) {
        "write ':' before each option of a wire, as in wire=eth1:af_xdp; "
    } else {
        ""
    };
    format!(
        "unknown option {word:?}; {hint}there are rules=N, engines=LIST, walk=on, dma=on, dma-threshold=BYTES, bus=BUS, wire=INTERFACE and cable=off"
    )
}

/// Whether an uplink has such an option or driver, its value right or not.
fn is_of_uplinks(word: &str) -> bool {
    match word.split_once('=') {
        None => parse_uplink_arg(&format!("{WIRE}=eth1,{word}")).is_ok(),
        Some((option, _)) => {
            let options = ["driver", "queues", "nice", "gro", "vlans"];
            options.contains(&option) || OF_UPLINKS.contains(&option)
        }
    }
}

/// An interface and options of `--uplink`, with ':' between them. What begins with a digit, or is `untagged`, belongs to the list before it: no
/// option does. An address has five more pieces, whatever they begin with.
fn parse_wire(text: &str) -> Result<(SavedUplink, String), String> {
    let mut argument = format!("{WIRE}=");
    let mut of_address = 0_u32;
    for (at, piece) in text.split(':').enumerate() {
        let is_rest = of_address > 0 || piece == "untagged" || piece.starts_with(|c: char| c.is_ascii_digit());
        of_address = if piece.starts_with("static-mac=") { 5 } else { of_address.saturating_sub(1) };
        match at {
            0 => {}
            _ if is_rest => argument.push(':'),
            _ => argument.push(','),
        }
        argument.push_str(piece);
    }
    Ok((parse_uplink_arg(&argument)?.spec, argument))
}
