//! Sockets whose files somebody removes while lasthop runs: made anew, or shown with what is in the way.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, scratch, wait_for};
use std::fs;

fn note(lasthop: &Lasthop, port: &str) -> String {
    lasthop.port(port)["note"].as_str().unwrap_or_default().to_owned()
}

/// `lasthop port list` said that no lasthop was running and to start one, and `lasthop run` that another was running.
#[test]
fn a_socket_of_the_api_that_is_removed_comes_back() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("a", dir.path())], &["--read-group", "root"]);
    let pids = lasthop.pids();
    let sockets = ["api.sock", "read.sock"].map(|name| lasthop.run_dir().join(name));
    let answers = |socket: &std::path::Path| std::os::unix::net::UnixStream::connect(socket).is_ok();
    for socket in &sockets {
        fs::remove_file(socket).expect("it is there");
        wait_for("another socket", PATIENCE, || answers(socket));
    }
    wait_for("an answer", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
    assert_eq!(lasthop.port("a")["state"], "waiting");
    let said = format!("API: {} was removed or replaced; making it anew", sockets[0].display());
    assert_eq!(lasthop.log().matches(&said).count(), 1, "{}", lasthop.log());

    // The whole directory.
    fs::remove_dir_all(lasthop.run_dir()).expect("it is there");
    wait_for("both sockets", PATIENCE, || sockets.iter().all(|socket| answers(socket)));
    wait_for("an answer", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
    // A control that comes later is given the new one.
    lasthop.kill("lasthop-control");
    wait_for("an answer", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
    assert_eq!(pids.len(), lasthop.pids().len());
}

/// Where it cannot be made anew, command and log agree on what is the case.
#[test]
fn what_is_in_the_way_of_the_api_is_said() {
    let lasthop = Lasthop::start(&[]);
    let socket = lasthop.run_dir().join("api.sock");
    let other = lasthop.run_dir().join("other");
    fs::write(&other, "precious").expect("a file");
    fs::rename(&other, &socket).expect("it takes its place");
    let failed = || {
        let out = lasthop.try_command(&["port", "list"]);
        (!out.status.success()).then(|| String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let wanted = format!("lasthop (pid {}) runs with {}", lasthop.pid(), lasthop.run_dir().display());
    wait_for("the command's word", PATIENCE, || failed().is_some_and(|said| said.contains(&wanted)));
    let line = format!("API: no command reaches lasthop: {} exists and is not a socket; remove it", socket.display());
    wait_for("a line in the log", PATIENCE, || lasthop.log().contains(&line));
    assert_eq!(fs::read_to_string(&socket).expect("it was left alone"), "precious");
    fs::remove_file(&socket).expect("it is ours");
    wait_for("an answer", PATIENCE, || failed().is_none());
    assert_eq!(lasthop.log().matches(&line).count(), 1, "once");
}

/// The port went on as `waiting`, and nobody could connect any more.
#[test]
fn a_ports_socket_that_is_removed_comes_back() {
    let dir = scratch();
    let sub = dir.path().join("sub");
    fs::create_dir(&sub).expect("a directory");
    let port = Port::listen("vm", &sub);
    let lasthop = Lasthop::start(std::slice::from_ref(&port));
    fs::remove_file(&port.socket).expect("it is there");
    wait_for("another socket", PATIENCE, || port.socket.exists());
    let guest = Guest::connect(&port.socket, mac(1), Options::default());
    lasthop.wait_for_state("vm", "up");

    // Whoever is connected stays so.
    let away = dir.path().join("away");
    fs::rename(&sub, &away).expect("it is ours");
    let fault = format!("{}: no such directory; create it or choose another path", port.socket.display());
    wait_for("the fault", PATIENCE, || note(&lasthop, "vm").contains(&fault));
    assert_eq!(lasthop.port("vm")["state"], "up");
    assert!(lasthop.command(&["port", "list"]).contains(&format!("vm: {}", note(&lasthop, "vm"))));
    drop(guest);
    lasthop.wait_for_state("vm", "waiting");
    lasthop.kill("lasthop-control");
    wait_for("a later control's word", PATIENCE, || {
        lasthop.try_command(&["port", "list"]).status.success() && note(&lasthop, "vm").contains(&fault)
    });
    assert_eq!(lasthop.log().matches(&fault).count(), 1, "once\n{}", lasthop.log());

    fs::create_dir(&sub).expect("a directory");
    wait_for("another socket", PATIENCE, || port.socket.exists());
    let _guest = Guest::connect(&port.socket, mac(1), Options::default());
    lasthop.wait_for_state("vm", "up");
    assert_eq!(note(&lasthop, "vm"), "");
    // Above the directory nobody looks, until somebody asks.
    let below = dir.path().join("deep/er");
    fs::create_dir_all(&below).expect("a directory");
    let other = Port::listen("other", &below);
    lasthop.command(&["port", "add", "other", &other.socket.display().to_string()]);
    fs::rename(dir.path().join("deep"), dir.path().join("elsewhere")).expect("it is ours");
    assert!(note(&lasthop, "other").contains("no such directory"), "{}", note(&lasthop, "other"));
}

/// The owner of a socket's file may change it as he likes, and so make the kernel report it.
#[test]
fn a_socket_that_is_removed_again_and_again_costs_little() {
    let dir = scratch();
    let port = Port::listen("vm", dir.path());
    let lasthop = Lasthop::start(std::slice::from_ref(&port));
    let mut removed = 0;
    wait_for("many to be removed", PATIENCE, || {
        removed += u32::from(fs::remove_file(&port.socket).is_ok());
        removed >= 80
    });
    let lines = lasthop.log().lines().filter(|line| line.contains("port vm: ")).count();
    assert!(lines <= 90, "{lines} lines of {removed}");
    wait_for("another socket", PATIENCE, || port.socket.exists());
}
