//! Instructions of each stage of the packet path, counted by callgrind. `cargo xtask counts` runs this and compares.

// What the macros define has no documentation.
#![allow(missing_docs)]

use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use lasthop_bench_stages::{Extraction, Lookups, Stage, Take, Traffic, Walk};
use lasthop_frame::Depth;

/// The C library chooses its copy loops by processor; this leaves only what every x86-64 processor has.
const ONE_COPY_LOOP: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-SSSE3:\
    glibc.cpu.x86_non_temporal_threshold=0xc0000";

#[library_benchmark]
#[bench::split(args = (Take::new(false)), teardown = Take::check)]
#[bench::packed(args = (Take::new(true)), teardown = Take::check)]
fn take(mut stage: Box<Take>) -> Box<Take> {
    stage.run();
    stage
}

#[library_benchmark]
#[bench::l2(args = (Extraction::new(Depth::L2)), teardown = Extraction::check)]
#[bench::l4(args = (Extraction::new(Depth::L4)), teardown = Extraction::check)]
#[bench::full(args = (Extraction::new(Depth::Full)), teardown = Extraction::check)]
fn key(mut stage: Box<Extraction>) -> Box<Extraction> {
    stage.run();
    stage
}

#[library_benchmark]
#[bench::masks_1(args = (Lookups::new(1)), teardown = Lookups::check)]
#[bench::masks_8(args = (Lookups::new(8)), teardown = Lookups::check)]
#[bench::masks_32(args = (Lookups::new(32)), teardown = Lookups::check)]
fn lookup(mut stage: Box<Lookups>) -> Box<Lookups> {
    stage.run();
    stage
}

#[library_benchmark]
#[bench::split_60(args = (Walk::new(Traffic::udp(&[60]))), teardown = Walk::check)]
#[bench::split_64(args = (Walk::new(Traffic::udp(&[64]))), teardown = Walk::check)]
#[bench::packed_64(args = (Walk::new(Traffic::udp(&[64]).packed())), teardown = Walk::check)]
#[bench::regions_64(args = (Walk::new(Traffic::udp(&[64]).in_two_regions())), teardown = Walk::check)]
#[bench::any_order_64(args = (Walk::new(Traffic::udp(&[64]).in_any_order())), teardown = Walk::check)]
#[bench::queues_64(args = (Walk::new(Traffic::queues(4))), teardown = Walk::check)]
#[bench::split_1472(args = (Walk::new(Traffic::udp(&[1472]))), teardown = Walk::check)]
#[bench::imix(args = (Walk::new(Traffic::imix())), teardown = Walk::check)]
#[bench::stations_64(args = (Walk::new(Traffic::stations())), teardown = Walk::check)]
#[bench::sockets_64_one_flow(args = (Walk::new(Traffic::sockets_of_one_flow())), teardown = Walk::check)]
#[bench::sockets_64(args = (Walk::new(Traffic::sockets())), teardown = Walk::check)]
#[bench::flood_3(args = (Walk::new(Traffic::flood())), teardown = Walk::check)]
#[bench::set_nat_64(args = (Walk::new(Traffic::set_nat())), teardown = Walk::check)]
#[bench::push_vlan_64(args = (Walk::new(Traffic::push_vlan())), teardown = Walk::check)]
#[bench::mirror_64(args = (Walk::new(Traffic::mirror())), teardown = Walk::check)]
#[bench::checksum_1514(args = (Walk::new(Traffic::checksum(1514))), teardown = Walk::check)]
#[bench::gso_64k(args = (Walk::new(Traffic::gso())), teardown = Walk::check)]
#[bench::joined_buffers_9014(args = (Walk::new(Traffic::joined_buffers())), teardown = Walk::check)]
fn walk(mut stage: Box<Walk>) -> Box<Walk> {
    stage.run();
    stage
}

library_benchmark_group!(name = stages, benchmarks = [take, key, lookup, walk]);

main!(
    config = LibraryBenchmarkConfig::default()
        .env("GLIBC_TUNABLES", ONE_COPY_LOOP)
        .tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = stages
);
