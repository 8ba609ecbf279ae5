use super::*;

fn changed(from: &PortSettings, text: &str) -> Result<PortSettings, String> {
    from.change(text.split(' ').map(|word| word.split_once('=').unwrap()))
}

fn set(text: &str) -> PortSettings {
    changed(&PortSettings::default(), text).unwrap()
}

#[test]
fn what_is_said_is_shown_and_kept() {
    for (text, shown) in [
        ("vlan=10", "vlan=10"),
        ("trunk=20-30,10 native=5", "trunk=10:20-30 native=5"),
        ("native=5", "native=5"),
        ("isolated=on no-ra=on no-dhcp-server=on", "isolated=on no-dhcp-server=on no-ra=on"),
        ("rate-from=100Mbit rate-to=20kpps storm=1M:64K", "rate-from=100M rate-to=20kpps storm=1M:64K"),
        ("mac=52-54-00-00-00-01 mac=52:54:00:00:00:02", "mac=52:54:00:00:00:01,52:54:00:00:00:02"),
        ("mac=5254000000aB", "mac=52:54:00:00:00:ab"),
        ("link=down", "link=down"),
        ("weight=1", "weight=1"),
        ("queue-of=net", "queue-of=net"),
        ("queue-of=net:64", "queue-of=net:64"),
        ("priority=1", "priority=1"),
        ("weight=2 max-ring=512", "max-ring=512 weight=2"),
        ("engine=poll-1 max-cpu=20% weight=2", "weight=2 max-cpu=20 engine=poll-1"),
        ("engine=ports", "engine=ports"),
        ("max-cpu-to=5 max-cpu=20", "max-cpu=20 max-cpu-to=5"),
        (
            "vlan=10 static-mac=52:54:00:00:00:02 static-mac=52:54:00:00:00:01@10",
            "vlan=10 static-mac=52:54:00:00:00:01@10,52:54:00:00:00:02",
        ),
        ("mac=52:54:00:00:00:01 addr=10.0.0.1,fd00::/64", "mac=52:54:00:00:00:01 addr=10.0.0.1,fd00::/64"),
    ] {
        let settings = set(text);
        assert_eq!(settings.to_string(), shown);
        assert_eq!(set(shown), settings);
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<PortSettings>(&json).unwrap(), settings, "{json}");
    }
    assert_eq!(PortSettings::default().to_string(), "");
    assert_eq!(changed(&set("max-cpu=20"), "max-cpu=0").unwrap(), PortSettings::default());
}

#[test]
fn a_change_leaves_what_it_does_not_name() {
    let before = set("vlan=10 isolated=on mac=52:54:00:00:00:01");
    let text = |change| changed(&before, change).unwrap().to_string();
    assert_eq!(text("isolated=off"), "vlan=10 mac=52:54:00:00:00:01");
    assert_eq!(text("trunk=10,20"), "trunk=10:20 isolated=on mac=52:54:00:00:00:01", "a trunk is no access port");
    assert_eq!(text("mac=52:54:00:00:00:09"), "vlan=10 isolated=on mac=52:54:00:00:00:09");
    assert_eq!(text("mac=none vlan=none"), "isolated=on");
    let text = |before: &str, change| changed(&set(before), change).map(|after| after.to_string());
    let (one, two) = ("static-mac=52:54:00:00:00:01", "static-mac=52:54:00:00:00:01,52:54:00:00:00:02@7");
    assert_eq!(text(one, "static-mac=+52:54:00:00:00:02@7").unwrap(), two);
    assert_eq!(text(two, "static-mac=-52:54:00:00:00:02@7").unwrap(), one);
    let twice = text(one, "static-mac=+52:54:00:00:00:01").unwrap_err();
    assert_eq!(twice, "static-mac=52:54:00:00:00:01: it is static at this port already");
    assert!(text(one, "static-mac=-52:54:00:00:00:02").unwrap_err().contains("`lasthop mac list`"));
    let trunk = set("trunk=10 native=1");
    assert_eq!(changed(&trunk, "vlan=7").unwrap().to_string(), "vlan=7");
    assert_eq!(changed(&trunk, "vlan=7 trunk=none").unwrap().to_string(), "vlan=7");
    assert_eq!(changed(&trunk, "native=none").unwrap().to_string(), "trunk=10");
}

/// A port without a VLAN carries all of them: that takes `vlan=none`.
#[test]
fn what_is_taken_back_and_was_not_there_opens_nothing() {
    let before = set("vlan=10 isolated=on");
    for change in ["trunk=none", "native=none", "trunk=none native=none", "trunk=off"] {
        assert_eq!(changed(&before, change).unwrap(), before, "{change}");
    }
    assert_eq!(changed(&before, "vlan=none trunk=none").unwrap().to_string(), "isolated=on");
}

#[test]
fn off_takes_every_setting_back() {
    let all = "isolated=on mac=52:54:00:00:00:01 addr=10.0.0.1 no-dhcp-server=on no-ra=on rate-from=1M rate-to=2M min-rate=1M storm=3M connections=5 nat-ports=6 grants=1000 max-ring=256 weight=300 priority=2 max-cpu=20 max-cpu-to=5 link=down snooping=on static-mac=52:54:00:00:00:07 tx-batch=9,9 rx-batch=off queue-of=net";
    for before in [set(&format!("{all} vlan=10")), set(&format!("{all} trunk=10 native=1"))] {
        for word in ["none", "off"] {
            let instead = |name: &str| match name {
                "link" if word == "off" => "up",
                // There it is a value.
                "tx-batch" | "rx-batch" => "none",
                _ => word,
            };
            let words = SETTINGS.iter().map(|name| (*name, instead(name)));
            assert_eq!(before.change(words).unwrap(), PortSettings::default(), "{word}");
        }
        let off = before.change([("link", "off")]).unwrap_err().to_string();
        assert!(off.contains("write up or down"), "{off}");
    }
}

#[test]
fn what_is_wrong_is_said_with_what_to_write() {
    let macs: Vec<_> = (0..65).map(|n| format!("52:54:00:00:00:{n:02x}")).collect();
    for (text, wrong) in [
        (
            "vlan=5000",
            "vlan=5000: \"5000\" is not a VLAN id; write one, 1 to 4094 (several: trunk), or none to take it back",
        ),
        ("vlan=0", "0 is no VLAN; write one"),
        ("vlan=10,20", "\"10,20\" is not a VLAN id; write one"),
        ("native=10-20", "write one, 1 to 4094"),
        ("trunk=5000", "\"5000\" is not a VLAN id; write ids and ranges such as 10,20-30, or none to take it back"),
        ("trunk=0", "0 is no VLAN; native=VLAN says"),
        ("trunk=", "no VLANs; write ids and ranges"),
        ("trunk=10,10", "VLAN 10 is there twice"),
        ("vlan=10 trunk=20", "an access port (vlan) or a trunk"),
        ("trunk=untagged:10", "native=VLAN says"),
        ("trunk=20-10", "write 10-20"),
        ("isolated=yes", "write on or off"),
        (
            "min-rate=20kpps",
            "packets say nothing of bits; write bits a second alone, such as 500k, 100M or 1.5G, or none",
        ),
        ("min-rate=20M:64K", "a part has no burst; write bits a second alone"),
        ("min-rate=fast", "\"fast\" is no rate; write bits a second alone, such as 500k, 100M or 1.5G, or none"),
        ("min-rate=100", "did you mean 100M?"),
        ("min-rate=20M rate-from=10M", "it is to get 20M of an uplink (min-rate), and may send 10M"),
        ("mac=52:54:00:00:00", "such as 52:54:00:12:34:56"),
        ("mac=01:00:5e:00:00:01", "no station's address"),
        ("mac=52:54:00:00:00:01 addr=10.0.0.300", "such as 10.0.0.1"),
        (
            "mac=52:54:00:00:00:01 addr=10.0.0.1/24",
            "10.0.0.1/24 has host bits; write 10.0.0.1 for this address, or 10.0.0.0/24 for all of them",
        ),
        ("mac=52:54:00:00:00:01 addr=fd00::1/64", "write fd00::1 for this address, or fd00::/64"),
        ("mac=52:54:00:00:00:01 addr=any", "or none to take it back"),
        ("mac=52:54:00:00:00:01 addr=10.0.0.1/33", "from 0 to 32"),
        ("mac=x", "or none to take it back"),
        ("rate-from=-5", "or none to take it back"),
        ("addr=10.0.0.1", "say with mac"),
        ("nat-ports=0", "from 1 to 65535, or none for the default"),
        ("grants=511", "a number of ranges from 512 to 262144, or none for the default"),
        ("weight=0", "write a share from 1 to 1000, or none for the default, 100"),
        ("weight=1001", "from 1 to 1000"),
        ("priority=3", "write 0, 1 or 2 (above all others), or none for the default, 0"),
        ("max-cpu=-1", "hundredths of one processor from 1 to 6400, such as 20, or none (or 0) for no bound"),
        ("max-cpu=6401", "from 1 to 6400"),
        ("max-cpu-to=x", "max-cpu-to=x: write hundredths of one processor"),
        ("max-cpu=0.5", "from 1 to 6400"),
        ("queue-of=a,b", "write the name of an uplink, or none to take it back"),
        ("queue-of=net:63", "\"63\" is not a number of frames, 64 or more; write net:256, or net for all it has"),
        ("queue-of=net:70000", "\"70000\" is not a number of frames"),
        ("max-ring=63", "a number of entries from 64 to 32768, or none for no bound"),
        ("max-ring=65536", "from 64 to 32768"),
        ("link=on", "write up or down"),
        ("static-mac=x", "such as 52:54:00:12:34:56"),
        ("vlan=10 static-mac=52:54:00:00:00:01@20", "does not carry VLAN 20 (vlan=10); add it for"),
        (
            "trunk=10,20 static-mac=52:54:00:00:00:01",
            "does not carry frames without a tag (trunk=10:20); add it with the VLAN",
        ),
        ("native=5 static-mac=52:54:00:00:00:01@5,52:54:00:00:00:01", "is there twice in VLAN 5"),
        ("color=red", "there are vlan, trunk"),
        ("vlan=1 vlan=2", "vlan is there twice"),
        (&format!("mac={}", macs.join(",")), "more than 64"),
    ] {
        let error = changed(&PortSettings::default(), text).unwrap_err();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}

#[test]
fn a_file_with_something_else_in_it_is_refused() {
    for json in [r#""vlan""#, r#""vlan=10 trunk=20""#, r#""native=4095""#, r#""addr=10.0.0.1/40""#, r#"{}"#] {
        assert!(serde_json::from_str::<PortSettings>(json).is_err(), "{json}");
    }
    assert!(serde_json::from_str::<PortSettings>("\"\"").unwrap().is_default());
}
