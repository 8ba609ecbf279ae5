//! The DMA engine of a device: what the command line says of it, and the page in which it counts, of which each process of the data plane has one of its own.

use super::supervisor::Supervisor;
use lasthop_dma_counters::PAGE_BYTES;
use lasthop_sys::sealed_memfd;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;

/// Copies of up to so many bytes are the processor's if nothing is said: the thesis's, 4.6.1.
pub const THRESHOLD: usize = 128;
/// Longer than any packet.
const MOST: usize = 65_536;

/// `dma=ENGINE`: whether there is to be one.
pub fn is_wanted(engine: &str) -> Result<bool, String> {
    match engine {
        "on" | "software" => Ok(true),
        "off" => Ok(false),
        path if path.starts_with('/') => Err(hardware(path)),
        _ => Err(format!("dma={engine}: no such engine; write dma=on, dma=software or dma=off")),
    }
}

/// Why an engine of the host's hardware cannot be used.
fn hardware(path: &str) -> String {
    let why = match std::fs::metadata(path).and_then(|of| Ok((of, File::options().write(true).open(path)?))) {
        Err(e) => format!("it cannot be opened: {e}"),
        Ok((of, _)) if !of.file_type().is_char_device() => {
            "it is no work queue of an accelerator, but another file".into()
        }
        Ok(_) => "it is there, but this lasthop has no driver for engines in hardware".into(),
    };
    format!("dma={path}: {why}; write dma=software for an engine that is a thread")
}

/// `dma-threshold=BYTES`
pub fn threshold(bytes: &str) -> Result<usize, String> {
    let bytes_given = bytes.parse().ok().filter(|bytes| *bytes <= MOST);
    bytes_given.ok_or_else(|| format!("dma-threshold={bytes}: no number of bytes; use 0 to {MOST}"))
}

/// A new page.
pub fn page() -> io::Result<OwnedFd> {
    Ok(sealed_memfd("lasthop-dma", PAGE_BYTES)?)
}

impl Supervisor {
    /// A new page for the DMA engine of a data plane to come, if it will have one.
    pub(super) fn another_dma_page(&self) -> io::Result<Option<OwnedFd>> {
        self.dma.as_ref().map(|_| page()).transpose()
    }
}

/// Arguments of a data plane that is given the page as this descriptor.
pub fn arguments(threshold: usize, page: usize) -> [String; 4] {
    ["--dma-fd".into(), page.to_string(), "--dma-threshold".into(), threshold.to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_cannot_be_used_says_why() {
        assert_eq!(["on", "software", "off"].map(is_wanted), [Ok(true), Ok(true), Ok(false)]);
        for (engine, says) in [
            ("/dev/dsa/there-is-none", "it cannot be opened: No such file"),
            ("/etc/hostname", "it is no work queue"),
            ("/dev/null", "it is there, but this lasthop has no driver"),
            ("hard", "no such engine; write dma=on"),
        ] {
            let error = is_wanted(engine).unwrap_err();
            assert!(error.starts_with(&format!("dma={engine}: ")) && error.contains(says), "{error}");
        }
        assert_eq!(threshold("0"), Ok(0));
        assert_eq!(threshold("65537").unwrap_err(), "dma-threshold=65537: no number of bytes; use 0 to 65536");
        assert!(threshold("-1").is_err() && threshold("").is_err());
    }
}
