//! From a frame to its flow, in cycles: the stages `key` and `lookup` of the instruction counts.
//!
//! `classify` measures each stage thousands of times, 256 packets at a time, all from one core's caches.

use clap::Parser;
use lasthop_bench_stages::{Cycles, Extraction, Lookups, PACKETS, Stage};
use lasthop_frame::Depth;

/// From a frame to its flow, in cycles of the processor's counter.
#[derive(Parser)]
struct Args {
    /// How often each stage is measured
    #[arg(long, default_value_t = 20_000)]
    times: usize,
}

fn main() {
    let Args { times } = Args::parse();
    for (name, depth) in [("l2", Depth::L2), ("l4", Depth::L4), ("full", Depth::Full)] {
        measure(&format!("key/{name}"), Extraction::new(depth), times);
    }
    for masks in [1, 8, 32] {
        measure(&format!("lookup/masks_{masks}"), Lookups::new(masks), times);
    }
}

fn measure(name: &str, mut stage: Box<impl Stage>, times: usize) {
    let mut cycles = Cycles::new(PACKETS);
    (0..times).for_each(|_| cycles.measure(|| stage.run()));
    println!("{name:<16} {cycles}");
    if times > 0 {
        stage.check();
    }
}
