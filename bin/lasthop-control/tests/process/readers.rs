//! Clients that may look at everything and change nothing.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A control with a socket for readers, too.
fn with_readers() -> (Control, Fake) {
    let (fake, supervisor, api) = Fake::new();
    let read = std::os::unix::net::UnixListener::bind(fake.dir.path().join("read.sock")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop-control"));
    let fds = [(supervisor, 3), (api, 4), (read.into(), 5)];
    let mappings = fds.into_iter().map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
    command.args(["--supervisor-fd", "3", "--api-fd", "4", "--read-api-fd", "5"]).fd_mappings(mappings).unwrap();
    (Control(command.spawn().unwrap()), fake)
}

#[test]
fn at_the_socket_for_readers_nothing_can_be_changed() {
    let (_control, mut fake) = with_readers();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    let ask = async |api: &mut Connection| {
        let refused = [
            api.port_add("vm3", "/tmp/x", false, None, None, &[]).await.unwrap().map(drop),
            api.port_del("vm1").await.unwrap().map(drop),
            api.uplink_add("net", "eth0", None, 1, 0, true, false, None).await.unwrap().map(drop),
            api.uplink_set("net", None).await.unwrap().map(drop),
            api.uplink_del("net").await.unwrap().map(drop),
            api.acl_text("deny icmp").await.unwrap().map(drop),
            api.acl_load("auto", "deny", &[], None, None, None).await.unwrap().map(drop),
            api.acl_clear(&[], None, None).await.unwrap().map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(matches!(error, ApiError::ReadOnly { .. }) && error.to_string().contains("as root"), "{error}");
        }
        assert_eq!(api.stats().await.unwrap().unwrap().ports, 2);
        assert_eq!(api.uplink_list().await.unwrap().unwrap().uplinks.len(), 1);
        api.trace("vm1", &"00".repeat(14)).await.unwrap().unwrap();
        let ports = Box::pin(api.port_list().await.unwrap()).next().await.unwrap().unwrap().unwrap();
        ports.total
    };
    assert_eq!(client_at(&mut fake, "read.sock", ask), 2);
    assert_eq!(fake.ports.len(), 2);
}

/// A call may take milliseconds to read, and to refuse it asks nobody: still all else has its turn between two of them.
#[test]
fn readers_who_ask_for_much_keep_nobody_waiting() {
    let (_control, mut fake) = with_readers();
    fake.add_ports(&["a", "b"]);
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    let names = vec!["\"a\""; 30_000].join(",");
    let call = format!(
        "{{\"method\":\"org.lasthop.Switch.SetChange\",\"parameters\":{{\"name\":\"s\",\"add\":[{names}],\"del\":[]}}}}\0"
    );
    let answered = Arc::new(AtomicU64::new(0));
    let path = fake.dir.path().join("read.sock");
    for _ in 0..4 {
        let (mut reader, answered) = (UnixStream::connect(&path).unwrap(), answered.clone());
        let (mut writer, call) = (reader.try_clone().unwrap(), call.clone());
        // Both end with control.
        std::thread::spawn(move || while writer.write_all(call.as_bytes()).is_ok() {});
        std::thread::spawn(move || {
            let mut answers = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut answers) {
                answered.fetch_add(answers[..n].iter().filter(|byte| **byte == 0).count() as u64, Ordering::Relaxed);
            }
        });
    }
    while answered.load(Ordering::Relaxed) < 8 {
        std::thread::yield_now();
    }
    let mut most = 0;
    for _ in 0..10 {
        let before = answered.load(Ordering::Relaxed);
        client(&mut fake, async |api| api.stats().await.unwrap().unwrap());
        most = most.max(answered.load(Ordering::Relaxed) - before);
    }
    // An answer takes a few turns of its own: from the client to the core, to the switch, and back.
    assert!(most <= 40, "{most} calls of readers were answered before one of an owner");
}
