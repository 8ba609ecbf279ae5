//! Clients of the API that are idle, hasty or mute.

use super::*;
use lasthop_flow::FlowSpec;
use lasthop_frame::{FlowKey, FlowMask};

/// `lasthop port list | head -1` left a line in the log, in the words of the library.
#[test]
fn a_client_that_has_seen_enough_is_no_news() {
    let (mut control, mut fake) = Control::start_with(Stdio::piped());
    let names: Vec<String> = (0..300).map(|n| format!("vm{n}")).collect();
    fake.add_ports(&names.iter().map(String::as_str).collect::<Vec<_>>());
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    for _ in 0..20 {
        let mut hasty = UnixStream::connect(fake.dir.path().join("api.sock")).unwrap();
        hasty.write_all(b"{\"method\":\"org.lasthop.Switch.PortList\",\"more\":true}\0").unwrap();
        drop(hasty);
        // It is answered in the meantime.
        client(&mut fake, async |api| api.stats().await.unwrap().unwrap());
    }
    drop(fake);
    let mut log = String::new();
    control.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("the switch is connected; it has 300 ports"), "{log}");
    assert!(!log.contains("Broken") && !log.contains("client"), "{log}");
}

#[test]
fn clients_that_never_read_keep_nobody_waiting() {
    let (_control, mut fake) = Control::start();
    let names: Vec<String> = (0..300).map(|n| format!("vm{n}")).collect();
    fake.add_ports(&names.iter().map(String::as_str).collect::<Vec<_>>());
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    let call = b"{\"method\":\"org.lasthop.Switch.PortList\",\"parameters\":{},\"more\":true}\0";
    let mut mute = Vec::new();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(fake.dir.path().join("api.sock")).unwrap();
        // As many calls as the socket takes.
        stream.set_nonblocking(true).unwrap();
        while stream.write(call).is_ok() {}
        mute.push(stream);
        let stats = client(&mut fake, async |api| api.stats().await.unwrap().unwrap());
        assert!(stats.switch_connected);
    }
    assert_eq!(mute.len(), 20);
}

/// Long lists are kept until they are read, and there is memory for a few: others are told to try again, and can do all else.
#[test]
fn long_lists_that_nobody_reads_are_few() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["a", "b"]);
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    let spec = |n: u32| FlowSpec {
        key: FlowKey { in_port: n, ..FlowKey::default() },
        mask: FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }),
        actions: vec![],
        epoch: 0,
    };
    fake.flows.extend((0..3000).map(|n| (spec(n), 0)));
    let ask = |fake: &mut Fake| {
        let mut stream = UnixStream::connect(fake.dir.path().join("api.sock")).unwrap();
        stream.write_all(b"{\"method\":\"org.lasthop.Switch.FlowList\",\"more\":true}\0").unwrap();
        let mut byte = [0];
        while rustix::io::ioctl_fionread(&stream).unwrap() == 0 {
            assert!(client(fake, async |api| api.stats().await.unwrap().unwrap()).switch_connected);
        }
        stream.read_exact(&mut byte).unwrap();
        stream
    };
    let mut mute: Vec<_> = (0..4).map(|_| ask(&mut fake)).collect();
    let mut fifth = ask(&mut fake);
    let answer = |stream: &mut UnixStream| {
        let mut buf = [0; 300];
        let n = stream.read(&mut buf).unwrap();
        String::from_utf8_lossy(&buf[..n]).into_owned()
    };
    assert!(answer(&mut fifth).contains("error"), "a fifth has to try again");
    // Whoever has gone makes room.
    drop(mute.pop());
    let mut next = String::new();
    while !next.contains("flows") {
        next = answer(&mut ask(&mut fake));
    }
}

/// Forty clients that connect and say nothing once kept everybody out, root as well.
#[test]
fn idle_clients_keep_nobody_out() {
    let (_control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    let socket = fake.dir.path().join("api.sock");
    let mut idle: Vec<_> = (0..300).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for _ in 0..3 {
        let stats = client(&mut fake, async |api| api.stats().await.unwrap().unwrap());
        assert!(!stats.switch_connected);
    }
    // Those that were there first have made room.
    let mut byte = [0];
    assert_eq!(idle[0].read(&mut byte).unwrap(), 0);
    drop(idle.split_off(1));
}

/// What the supervisor says of an upgrade is what the client hears, by ports' names.
#[test]
fn what_came_of_an_upgrade_is_said() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    async fn upgrade(
        api: &mut Connection,
        programs: Option<&str>,
        processes: &str,
    ) -> Result<lasthop_api::Upgraded, ApiError> {
        api.upgrade(programs, "0", processes, false, "1").await.unwrap()
    }
    let done = client(&mut fake, async |api| upgrade(api, Some("good"), "switch").await).unwrap();
    let process = &done.processes[0];
    assert_eq!((process.process.as_str(), process.pid, process.took_us), ("switch", 77, 2001));
    assert_eq!((done.kept[0].process.as_str(), done.kept[0].why.as_str()), ("session vm2", "a front-end is connected"));
    let ports: Vec<_> = done.ports.iter().map(|port| (port.port.as_str(), port.pause_us)).collect();
    assert_eq!(ports, [("vm1", Some(1001)), ("vm2", None)], "no less than it was");
    let refused = client(&mut fake, async |api| upgrade(api, None, "switch").await).unwrap_err();
    let ApiError::UpgradeRefused { message } = refused else { panic!("{refused:?}") };
    assert_eq!(message, "it does not start; the switch before goes on");
    let other = client(&mut fake, async |api| upgrade(api, Some("other"), "switch").await).unwrap_err();
    assert!(
        matches!(&other, ApiError::OtherMessages { message } if message.starts_with("restart lasthop")),
        "{other:?}"
    );
    let unknown = client(&mut fake, async |api| upgrade(api, None, "helpers").await).unwrap_err();
    assert!(unknown.to_string().contains("no processes \"helpers\""), "{unknown}");
    // Of engines it is another error, whether control or the supervisor refuses.
    for (kind, why) in [("core", "there is no kind of engine \"core\""), ("poll", "there is no such CPU")] {
        let refused = client(&mut fake, async |api| api.engine_add(kind, "9", "1").await.unwrap()).unwrap_err();
        let ApiError::EngineRefused { message } = refused else { panic!("{refused:?}") };
        assert!(message.contains(why), "{message}");
    }
}
