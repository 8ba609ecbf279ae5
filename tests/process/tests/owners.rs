//! Ports that have owners: who may use them, whatever the mode of a socket's file has become.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, mac, scratch, wait_for};
use lasthop_vhostuser::Frontend;
use lasthop_virtqueue::driver::NetDriver;
use rustix::fs::{Gid, Uid};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs::{Permissions, metadata, set_permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const OWNER: u32 = 41_001;
const STRANGER: u32 = 41_002;
const GROUP: u32 = 42_001;

/// Connects as another user: with its user, its group and one more group.
fn connect_as(path: &Path, uid: u32, gid: u32, also: u32) -> io::Result<UnixStream> {
    let path = path.to_owned();
    let thread = std::thread::spawn(move || {
        let [gid, also] = [gid, also].map(Gid::from_raw);
        set_thread_groups(&[also])?;
        set_thread_res_gid(gid, gid, gid)?;
        let uid = Uid::from_raw(uid);
        // The last step: only root may take the others. It is this thread's alone.
        set_thread_res_uid(uid, uid, uid)?;
        UnixStream::connect(path)
    });
    thread.join().expect("no panic")
}

fn guest(socket: UnixStream, n: u8) -> Guest {
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).expect("a socket has a timeout");
    let options = Options::default();
    Guest::attach(Frontend::over(socket.into()), NetDriver::new(options.net).expect("guest memory"), mac(n), options)
}

/// Whether lasthop hangs up.
fn is_refused(mut socket: UnixStream) -> bool {
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
    matches!(socket.read(&mut [0]), Ok(0) | Err(_))
}

fn open_to_all(dir: &Path) {
    set_permissions(dir, Permissions::from_mode(0o755)).expect("it is ours");
}

fn last_error(lasthop: &Lasthop, port: &str) -> String {
    lasthop.port(port)["last_error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_port_is_its_owners() {
    let dir = scratch();
    open_to_all(dir.path());
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let argument = |name: &str, owner: &str| format!("{name}={}{owner}", path(name).display());
    let ports = [argument("alone", ",owner=41001"), argument("shared", ",owner=41001:42001"), argument("free", "")];
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port]).collect();
    let lasthop = Lasthop::start_with(&[], &arguments);
    let file = |name: &str| metadata(path(name)).map(|m| (m.uid(), m.gid(), m.mode() & 0o777)).expect("a socket");
    assert_eq!((file("alone"), file("shared")), ((OWNER, 0, 0o600), (OWNER, GROUP, 0o660)));
    assert_eq!(file("free").2, 0o660, "as ever");
    assert_eq!(lasthop.port("alone")["owner"], "41001");
    assert_eq!(lasthop.port("shared")["owner"], "41001:42001");
    assert!(lasthop.port("free")["owner"].is_null());

    // The file keeps strangers out; should its mode be changed, they are asked who they are.
    assert!(connect_as(&path("alone"), STRANGER, STRANGER, STRANGER).is_err());
    for name in ["alone", "shared", "free"] {
        set_permissions(path(name), Permissions::from_mode(0o666)).expect("it is ours");
    }
    let strangers = [("alone", STRANGER, GROUP, GROUP), ("shared", STRANGER, STRANGER, STRANGER)];
    for (name, uid, gid, also) in strangers {
        assert!(is_refused(connect_as(&path(name), uid, gid, also).expect("a connection")), "{name}");
        let refused = format!("of user {STRANGER} was refused: the port belongs to 41001");
        wait_for("the refusal to be shown", PATIENCE, || last_error(&lasthop, name).contains(&refused));
        assert!(lasthop.log().contains(&format!("port {name}: process {} {refused}", std::process::id())));
        let list = lasthop.command(&["port", "list"]);
        let shown =
            |line: &str| line.starts_with(&format!("{name}: last connection, ")) && line.contains(" ago: process ");
        assert!(list.lines().any(shown), "{list}");
    }
    // A storm of them is a few lines.
    let lines = || lasthop.log().matches("port alone: process").count();
    for _ in 0..200 {
        assert!(is_refused(connect_as(&path("alone"), STRANGER, STRANGER, STRANGER).expect("a connection")));
    }
    assert!(lines() < 100, "{}", lasthop.log());

    for (name, uid, gid, also) in [
        ("alone", OWNER, STRANGER, STRANGER),
        ("alone", 0, 0, 0),
        ("shared", OWNER, STRANGER, STRANGER),
        ("shared", STRANGER, GROUP, STRANGER),
        ("shared", STRANGER, STRANGER, GROUP),
        ("free", STRANGER, STRANGER, STRANGER),
    ] {
        let guest = guest(connect_as(&path(name), uid, gid, also).expect("a connection"), 1);
        lasthop.wait_for_state(name, "up");
        let error = last_error(&lasthop, name);
        assert!(!error.contains("refused"), "{name}: a refusal of before is no news once it is up: {error}");
        drop(guest);
        lasthop.wait_for_state(name, "waiting");
    }
}

/// Given with `port add`, it is remembered; and where lasthop connects, whoever listens has to be the owner.
#[test]
fn an_owner_is_remembered_and_asked_for_where_lasthop_connects() {
    let dir = scratch();
    open_to_all(dir.path());
    let listening = dir.path().join("they.sock");
    let lasthop = Lasthop::start(&[]);
    let path = dir.path().join("vm.sock");
    let shown = |path: &PathBuf| path.display().to_string();
    lasthop.command(&["port", "add", "vm", &shown(&path), "--owner", "41001:42001"]);
    assert_eq!(lasthop.port("vm")["owner"], "41001:42001");
    assert_eq!(metadata(&path).map(|m| (m.uid(), m.gid())).expect("a socket"), (OWNER, GROUP));
    let kept = std::fs::read_to_string(lasthop.state_file("ports.json")).expect("it is there");
    assert!(kept.contains("\"owner\": \"41001:42001\""), "{kept}");
    let out = lasthop.try_command(&["port", "add", "vm2", "/tmp/vm2.sock", "--owner", "nobody-like-that"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("no user \"nobody-like-that\""), "{said}");

    set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("it is ours");
    let listen = |uid: u32| {
        let path = listening.clone();
        let thread = std::thread::spawn(move || {
            let _ = std::fs::remove_file(&path);
            set_thread_res_uid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid)).expect("we are root");
            std::os::unix::net::UnixListener::bind(path).expect("a listener")
        });
        thread.join().expect("no panic")
    };
    let stranger = listen(STRANGER);
    lasthop.command(&["port", "add", "they", &shown(&listening), "--client", "--owner", "41001"]);
    wait_for("the refusal", PATIENCE, || {
        last_error(&lasthop, "they").contains("was refused: the port belongs to 41001")
    });
    drop(stranger);
    let owner = listen(OWNER);
    let (socket, _) = owner.accept().expect("lasthop connects");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket has a timeout");
    let _guest = guest(socket, 1);
    lasthop.wait_for_state("they", "up");
}
