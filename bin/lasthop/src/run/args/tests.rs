use super::*;

#[test]
fn cpus_and_periods() {
    assert_eq!(parse_hysteresis("7"), Ok(Pair(7, 7)));
    assert_eq!(parse_hysteresis("0,20"), Ok(Pair(0, 20)));
    for bad in ["", "x", "1,", ",1", "1,2,3", "-1", "4000000"] {
        assert!(parse_hysteresis(bad).is_err(), "{bad}");
    }
    assert!(parse_hysteresis("9,8").unwrap_err().contains("second"));
    let congestion = [("10,2", Pair(10, 2)), ("7", Pair(7, 7)), ("off", Pair(0, 0)), ("1000,1", Pair(1000, 1))];
    for (text, pair) in congestion {
        assert_eq!(parse_congestion(text), Ok(pair));
    }
    for bad in ["", "0", "0,1", "5,0", "1001", "1,2,3", "on", "-1"] {
        assert!(parse_congestion(bad).unwrap_err().contains("10,2"), "{bad}");
    }
    assert!(parse_congestion("2,10").unwrap_err().contains("longer time first"));
    assert!(parse_cpus("0-3").is_ok() && parse_cpus("none").is_ok() && parse_cpus("3-0").is_err());
}

#[test]
fn a_thread_is_idle_for_a_while_or_stays() {
    for (text, ms) in [("0", 0), ("100", 100), ("10000", 10_000), ("4294967", 4_294_967)] {
        assert_eq!(parse_thread_idle(text), Ok(ms));
    }
    for bad in ["", "1", "99", "4294968", "-1", "off", "1s"] {
        assert!(parse_thread_idle(bad).unwrap_err().contains("from 100"), "{bad}");
    }
}

#[test]
fn a_watchdog_has_time_or_none() {
    assert_eq!(parse_watchdog("250"), Ok(Watchdog(Some(Duration::from_millis(250)))));
    assert_eq!(parse_watchdog("off"), Ok(Watchdog(None)));
    for text in ["250", "off"] {
        assert_eq!(parse_watchdog(text).map(|watchdog| watchdog.to_string()), Ok(text.into()));
    }
    for bad in ["", "0", "99", "1s", "on", "3600001", "-1"] {
        assert!(parse_watchdog(bad).unwrap_err().contains("or off"), "{bad}");
    }
}

#[test]
fn port_is_name_path_and_perhaps_client() {
    let port = |name: &str, path: &str, client| {
        let (name, path) = (name.into(), path.into());
        PortArg { name, path, client, owner: None, device: None, settings: Vec::new(), of_device: None }
    };
    assert_eq!(parse_port("vm1=/run/vm1.sock").unwrap(), port("vm1", "/run/vm1.sock", false));
    assert_eq!(parse_port("a.b-c_d=/x=y,client").unwrap(), port("a.b-c_d", "/x=y", true));
    for bad in ["vm1", "=/x", "vm1=", "vm1=,client", "vm1=/x,cleint", "vm1=/x,", "v m=/x", "v/m=/x", "ä=/x"] {
        assert!(parse_port(bad).is_err(), "{bad}");
    }
    assert!(parse_port(&format!("{}=/x", "n".repeat(63))).is_ok());
    assert!(parse_port(&format!("{}=/x", "n".repeat(64))).is_err());
    assert!(parse_port("vm1=/x,cleint").unwrap_err().contains("client"));
    let batch = |value: &str| Ok(vec![("tx-batch".to_owned(), value.to_owned())]);
    let settings = |text: &str| parse_port(text).map(|port| port.settings);
    assert_eq!(settings("vm1=/x,client,tx-batch=250:32"), batch("250:32"));
    assert_eq!(settings("vm1=/x,tx-batch=off"), batch("off"));
    let owner = |text: &str| parse_port(text).map(|port| port.owner.map(|owner| owner.to_string()));
    assert_eq!(owner("vm1=/x,owner=alice:kvm,client"), Ok(Some("alice:kvm".into())));
    for (bad, wrong) in [
        ("owner=", "USER:GROUP"),
        ("owner=a,owner=b", "already"),
        ("tx-batch", "tx-batch needs a value; write tx-batch=US:PACKETS or off"),
        ("tx-batch=", "\"\" is not a number"),
        ("tx-batch=1:40000", "32768"),
        ("tx-batch=250,32", "unknown option \"32\""),
        ("tx-batch=1,tx-batch=2", "twice"),
        ("vlan=5000", "1 to 4094"),
        ("vlan=1,trunk=2", "an access port (vlan) or a trunk"),
        ("vlan", "vlan needs a value; write vlan=ID"),
        ("mac", "mac needs a value; write mac=MAC"),
        ("addr=10.0.0.1", "say with mac"),
    ] {
        let error = parse_port(&format!("vm1=/x,{bad}")).unwrap_err();
        assert!(error.contains(wrong), "{bad}: {error}");
    }
}

#[test]
fn a_port_may_be_a_device() {
    let port = parse_port("c1=device:veth1,driver=af_packet,queues=2,spare").unwrap();
    let device = port.device.unwrap();
    assert_eq!((device.name.as_str(), device.device.as_str(), device.queues), ("c1", "veth1", 2));
    assert!(device.guest && device.spare && device.driver.as_deref() == Some("af_packet"));
    for (bad, wrong) in [
        ("c1=device:", "cannot be an interface"),
        ("c1=device:veth1,vlans=10", "vlans is for uplinks"),
        ("c1=device:veth1,client", "no driver \"client\""),
    ] {
        let error = parse_port(bad).unwrap_err();
        assert!(error.contains(wrong), "{bad}: {error}");
    }
    assert!(parse_port("c1=device").unwrap().device.is_none(), "a path");
}

#[test]
fn a_port_may_be_of_a_device() {
    let of = |text: &str| parse_port(text).map(|port| port.of_device);
    assert_eq!(of("a=/x,device=nic0,client"), Ok(Some(("nic0".into(), "a=/x,client".into()))));
    assert_eq!(of("a=/x"), Ok(None));
    for (bad, wrong) in [
        ("a=/x,device=n,device=m", "name it once"),
        ("a=/x,device=", "device="),
        ("a=device:lo,device=nic0", "leave out device="),
        ("a=/x,device=nic0,cleint", "unknown option"),
    ] {
        let error = of(bad).unwrap_err();
        assert!(error.contains(wrong), "{bad}: {error}");
    }
}

#[test]
fn a_device_has_rules_and_perhaps_engines() {
    let device = parse_device("nic0,rules=64,engines=0:2-3").unwrap();
    assert_eq!((device.rules, device.engines.map(|list| list.to_string())), (64, Some("0,2-3".into())));
    assert_eq!(parse_device("nic0").map(|device| (device.rules, device.engines)), Ok((1024, None)));
    assert_eq!(
        ["nic0", "nic0,cable=off"].map(|text| parse_device(text).map(|device| device.cable)),
        [Ok(true), Ok(false)]
    );
    for (bad, wrong) in [
        ("", "name"),
        ("nic0,rules=15", "use 16 to 65536"),
        ("nic0,rules", "rules=N"),
        ("nic0,engines=0,1", "write ':'"),
        ("nic0,engines=", "engines="),
        ("nic0,cable=on", "cable=off"),
    ] {
        let error = parse_device(bad).unwrap_err();
        assert!(error.contains(wrong), "{bad}: {error}");
    }
}

#[test]
fn a_device_may_have_a_wire() {
    let wire = |text: &str| parse_device(&format!("nic0,wire={text},cable=off")).map(|device| device.wire.unwrap());
    assert_eq!(parse_device("nic0").unwrap().wire, None);
    let (uplink, argument) = wire("eth1").unwrap();
    assert_eq!((uplink.name.as_str(), uplink.device.as_str(), uplink.queues), (WIRE, "eth1", 1));
    assert_eq!(argument, "wire=eth1");
    let text = "eth1:af_xdp:queues=4:gro=off:vlans=untagged:10:20-30:nice=-5:rate-to=950M:256K";
    let (uplink, argument) = wire(text).unwrap();
    assert_eq!(argument, "wire=eth1,af_xdp,queues=4,gro=off,vlans=untagged:10:20-30,nice=-5,rate-to=950M:256K");
    assert_eq!((uplink.driver.as_deref(), uplink.queues, uplink.nice), (Some("af_xdp"), 4, -5));
    assert_eq!(parse_uplink_arg(&argument).map(|arg| (arg.spec, arg.settings.len())), Ok((uplink, 1)));
    for addresses in ["52:54:00:ab:cd:ef", "52:54:00:ab:cd:ef@10:spare:static-mac=f2:54:00:ab:cd:ef:nice=-5"] {
        let (_, argument) = wire(&format!("eth1:static-mac={addresses}")).unwrap();
        let uplink = parse_uplink_arg(&argument).unwrap();
        let settings = if addresses.contains("spare") { 2 } else { 1 };
        assert_eq!((uplink.settings.len(), uplink.spec.spare), (settings, settings == 2), "{argument}");
    }
    for (bad, wrong) in [
        ("", "cannot be an interface"),
        ("a-name-that-is-too-long", "cannot be an interface"),
        ("eth1:vhost", "no driver \"vhost\""),
        ("eth1:queues=17", "use 1 to 16"),
        ("eth1:cable=off", "unknown option"),
        ("eth1,wire=eth2", "one wire"),
        ("eth1:static-mac=52:54:00:ab:cd", "static-mac"),
        ("eth1,af_xdp", "wire=eth1:af_xdp"),
        ("eth1,spare", "wire=eth1:af_xdp"),
        ("eth1,queues=99", "wire=eth1:af_xdp"),
        ("eth1,rate-to=950M", "wire=eth1:af_xdp"),
        ("eth1,rulez=7", "unknown option \"rulez=7\"; there are"),
        ("eth1,dma", "unknown option \"dma\"; there are"),
    ] {
        let error = wire(bad).unwrap_err();
        assert!(error.contains(wrong), "{bad}: {error}");
    }
}

/// What is said of guests is said of those of devices in words that they understand.
#[test]
fn a_device_is_told_what_is_said_of_guests() {
    use clap::{Args, FromArgMatches};
    let parse = |words: &[&str]| {
        let command = RunArgs::augment_args(clap::Command::new("run").no_binary_name(true));
        RunArgs::from_arg_matches(&command.get_matches_from(words)).unwrap()
    };
    for (words, told) in [
        (&[][..], "--congestion 10,2 --tx-batch 125,64 --rx-batch 125,64 --tx-timer lasthop"),
        (
            &["--congestion", "off", "--tx-batch", "off", "--tx-timer", "hyper-switch"],
            "--congestion off --tx-batch off --rx-batch 125,64 --tx-timer hyper-switch",
        ),
        (
            &["--congestion", "1000", "--max-guest-memory", "64G", "--helpers", "none"],
            "--congestion 1000,1000 --tx-batch 125,64 --rx-batch 125,64 --tx-timer lasthop --max-guest-memory 64G \
             --helpers none",
        ),
    ] {
        let said = parse(words).for_device(false);
        let words: Vec<&str> = said.iter().flat_map(|(option, value)| [option, &**value]).collect();
        assert_eq!(words.join(" "), told);
        assert_eq!(parse(&words).for_device(false), said, "and says the same");
    }
    let polls = parse(&["--helpers", "2-3"]).for_device(true);
    assert_eq!(polls.last(), Some(&("--helpers", "none".to_owned())), "one that polls keeps to its cores");
}

#[test]
fn an_interface_is_not_taken_for_a_path() {
    for (text, right) in
        [("lo", "device:lo"), ("dev:v1", "device:v1"), ("device=v1", "device:v1"), ("dev=v1,spare", "device:v1")]
    {
        let error = parse_port(&format!("c1={text}")).unwrap_err();
        assert!(error.contains(right), "{text}: {error}");
    }
    for path in ["./lo", "/run/lo", "no-such-interface", "/dev:v1"] {
        assert!(parse_port(&format!("c1={path}")).unwrap().device.is_none(), "{path}");
    }
}

/// `acl load --for` means something else by them.
#[test]
fn words_of_access_lists_name_no_new_port() {
    for word in ["guests", "uplinks", "all"] {
        for error in [parse_port(&format!("{word}=/x")).err(), parse_uplink(&format!("{word}=eth0")).err()] {
            assert!(error.as_ref().is_some_and(|e| e.contains("choose another name")), "{word}: {error:?}");
        }
    }
    assert!(parse_port("all1=/x").is_ok());
}

#[test]
fn settings_of_uplinks_are_among_the_options() {
    let settings = |text: &str| parse_uplink_arg(text).map(|uplink| (uplink.spec.device, uplink.settings));
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mac = "52:54:00:00:00:01";
    let wanted = vec![set("rate-to", "950M"), set("static-mac", mac), set("engine", "poll-3")];
    assert_eq!(
        settings(&format!("net=eth1,rate-to=950M,spare,static-mac={mac},driver=tap,engine=poll-3")),
        Ok(("eth1".into(), wanted))
    );
    assert_eq!(settings("net=eth1"), Ok(("eth1".into(), vec![])));
    for (bad, said) in [
        ("rate-to=fast", "is no rate"),
        ("rate-to", "write rate-to=RATE"),
        ("weight=5", "rate-to, engine and static-mac"),
        ("engine=core-3", "no port can be set to an engine of that name"),
        ("engine", "write engine=poll-CPU or ports"),
    ] {
        assert!(settings(&format!("net=eth1,{bad}")).is_err_and(|e| e.contains(said)), "{bad}");
    }
}

#[test]
fn uplink_is_name_device_and_perhaps_how() {
    let uplink = |driver: Option<&str>, queues| {
        let driver = driver.map(Into::into);
        Ok(SavedUplink {
            name: "up0".into(),
            device: "eth0".into(),
            driver,
            queues,
            nice: 0,
            no_gro: false,
            spare: false,
            vlans: None,
            guest: false,
            for_ovs: false,
        })
    };
    assert_eq!(parse_uplink("up0=eth0"), uplink(None, 1));
    assert_eq!(parse_uplink("up0=eth0,nice=-5").unwrap().nice, -5);
    assert!(parse_uplink("up0=eth0,af_xdp,gro=off").unwrap().no_gro);
    assert!(!parse_uplink("up0=eth0,gro=on").unwrap().no_gro);
    assert!(parse_uplink("up0=eth0,gro=off").unwrap_err().contains("ethtool"));
    assert!(parse_uplink("up0=eth0,af_xdp,queues=2,spare").unwrap_err().contains("one queue"));
    assert!(parse_uplink("up0=eth0,af_xdp,spare").is_ok() && parse_uplink("up0=eth0,af_packet,queues=2,spare").is_ok());
    assert!(parse_uplink("up0=eth0,tap,spare").is_ok_and(|u| u.spare && u.driver.is_some()));
    assert_eq!(parse_uplink("up0=eth0,tap"), uplink(Some("tap"), 1));
    assert_eq!(parse_uplink("up0=eth0,driver=tap,queues=2"), uplink(Some("tap"), 2));
    for twice in ["tap,driver=tap", "driver=tap,tap", "driver=tap,driver=tap"] {
        assert!(parse_uplink(&format!("up0=eth0,{twice}")).unwrap_err().contains("already"), "{twice}");
    }
    assert!(parse_uplink("up0=eth0,driver=dpdk").unwrap_err().contains("af_packet"));
    assert_eq!(parse_uplink("up0=eth0,af_packet,queues=4"), uplink(Some("af_packet"), 4));
    let vlans = parse_uplink("up0=eth0,vlans=20-30:untagged,af_packet,spare").unwrap().vlans;
    assert_eq!(vlans.map(String::from).as_deref(), Some("untagged:20-30"));
    for (bad, wrong) in [
        ("vlans=", "no VLANs"),
        ("vlans=5000", "vlans=5000: \"5000\" is not a VLAN id; use 1 to 4094"),
        ("vlans=20-10", "write 10-20"),
        ("vlans=10:10", "twice"),
        ("vlans=10,20", "20: write ':' between VLANs"),
        ("vlans=10,untagged", "write ':'"),
        ("vlans=10,vlans=20", "already"),
        ("vlans", "no driver"),
    ] {
        let error = parse_uplink(&format!("up0=eth0,{bad}")).unwrap_err();
        assert!(error.contains(wrong), "{bad}: {error}");
    }
    for bad in [
        "up0",
        "=eth0",
        "up0=",
        "up0=e/0",
        "up0=eth0,dpdk",
        "up0=eth0,queues=0",
        "up0=eth0,nice=20",
        "up0=eth0,queue=1",
        "up0=eth0,af_xdp,gro=maybe",
        "u p=eth0",
    ] {
        assert!(parse_uplink(bad).is_err(), "{bad}");
    }
    let error = parse_uplink("up0=eth0,dpdk").unwrap_err();
    assert!(error.contains("af_packet") && !error.contains("vxlan"), "{error}");
    let error = parse_uplink("up0=eth0,driver=vxlan").unwrap_err();
    assert!(error.contains("type=vxlan"), "{error}");
}
