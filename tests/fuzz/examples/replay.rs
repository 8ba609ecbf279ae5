//! Runs one target on some inputs, without a nightly toolchain:
//! `cargo run -p lasthop-tests-fuzz --example replay TARGET FILE...`

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().expect("the name of a target");
    for path in arguments {
        println!("{path}");
        lasthop_tests_fuzz::run(&target, &std::fs::read(&path)?);
    }
    Ok(())
}
