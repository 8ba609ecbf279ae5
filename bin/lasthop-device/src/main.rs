//! `lasthop-device`: the data plane of a device, which is the switch's with a table of so many rules as `lasthop run --device` says. Beside it, with
//! `walk=on`, a thread that looks for a flow in the host's memory before control is asked (`walker.rs`), and with `dma=on` one that copies for the others
//! (`dma.rs`).

mod dma;
mod walker;

use lasthop_ipc::Channel;
use lasthop_sys::inherited_fd;
use std::process::ExitCode;
use walker::Walker;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let number =
        |option: &str| words.iter().position(|word| word == option).and_then(|at| words.get(at + 1)?.parse().ok());
    let channel = number("--walk-fd").and_then(inherited_fd).map(Channel::new);
    let (page, threshold) = (number("--dma-fd").and_then(inherited_fd), number("--dma-threshold").unwrap_or(0));
    lasthop_switch::start("lasthop-device", || {
        if let Some(page) = page {
            dma::start(page, threshold.try_into().unwrap_or(0)).unwrap_or_else(|e| panic!("no DMA engine: {e}"));
        }
        if let Some(channel) = channel {
            // Without it nothing would come to control. A panic ends the process, as one of the switch's threads does, and another is started.
            let serve = || Walker::new(channel).and_then(Walker::serve).unwrap_or_else(|e| panic!("{e}"));
            let walker = std::thread::Builder::new().name("walk".into()).spawn(serve);
            walker.map(drop).unwrap_or_else(|e| panic!("no thread to walk the larger table: {e}"));
        }
    })
}
