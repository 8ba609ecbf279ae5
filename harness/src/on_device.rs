//! Tests run a second time with their ports on a device (docs/device.md): who starts them says so by a variable, and [`crate::Lasthop`] does
//! as it says.

/// The variable. It holds what follows the device's name behind `--device`, such as `rules=64,walk=on,dma=on`, or `on`, which is nothing.
pub const VARIABLE: &str = "LASTHOP_TEST_DEVICE";

/// The device's name, and that of its cable's port at the host.
pub const NAME: &str = "dev";

/// What the device is told, if tests run on one.
fn options() -> Option<String> {
    let options = std::env::var(VARIABLE).ok().filter(|options| !options.is_empty())?;
    Some(if options == "on" { String::new() } else { format!(",{options}") })
}

/// Whether tests run with their ports on a device.
pub fn is_on() -> bool {
    options().is_some()
}

/// Whether this test says nothing there, and is left out, which is printed with its reason.
pub fn skips(reason: &str) -> bool {
    if is_on() {
        println!("skipped: on a device this test says nothing: {reason}");
    }
    is_on()
}

/// The arguments of `lasthop run` by which the ports among them are a device's; none where the test names its devices, or what decides,
/// itself.
pub(crate) fn arguments(ports: &[String], arguments: &[&str]) -> Option<Vec<String>> {
    let options = options().filter(|_| !arguments.iter().any(|word| ["--device", "--control"].contains(word)))?;
    let on_device = |port: &str| {
        // An interface of the host's that is a guest is a guest of the host's.
        if port.contains("=device:") { port.to_owned() } else { format!("{port},device={NAME}") }
    };
    let mut all = vec!["--device".into(), format!("{NAME}{options}")];
    all.extend(ports.iter().flat_map(|port| ["--port".into(), on_device(port)]));
    for (n, word) in arguments.iter().enumerate() {
        let is_port = n > 0 && arguments[n - 1] == "--port";
        all.push(if is_port { on_device(word) } else { (*word).to_owned() });
    }
    Some(all)
}
