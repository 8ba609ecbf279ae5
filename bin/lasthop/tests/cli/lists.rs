//! Access lists: loaded, shown, cleared, and whom they are for.

use crate::fake::frame;
use crate::{World, complaint};

#[test]
fn loads_shows_and_clears_access_lists() {
    let mut w = World::new(&["vm1", "vm2"]);
    assert!(w.ok("acl show").starts_with("no access lists"));
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good =
        file("good", "# who may\ndeny udp to any port 9 # discard\npermit to-guest arp\ndefault to-guest deny\n");
    assert_eq!(
        w.ok(&format!("acl load {good}")),
        "access lists of guests: from guests 1 rule, default permit; to guests 1 rule, default deny\n"
    );
    let set = file("set", "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\t0x0000/0x0200\n");
    let said = w.ok(&format!("acl load {set} --port vm1 --direction to-guest"));
    assert!(said.contains("access lists of port vm1: from guests no list; to guests 1 rule, default permit"), "{said}");
    assert!(said.contains("1 filter with flags"), "{said}");
    w.fake().packet(&frame(1, 2), 1);
    w.fake().serve_until(|f| f.flows.len() == 1);
    assert_eq!(
        w.ok("acl show --packets"),
        "LIST      DIRECTION   RULE  PACKETS  TEXT\n\
         guests    from-guest     1        3  deny udp to any port 9\n\
         guests    from-guest     -        0  default permit\n\
         guests    to-guest       1        0  permit arp\n\
         guests    to-guest       -        0  default deny\n\
         port vm1  to-guest       1        0  deny udp from 10.0.0.0/8 to 0.0.0.0/0 port 53\n\
         port vm1  to-guest       -        0  default permit\n"
    );
    let shown = w.json("acl show --port vm1");
    let numbers: Vec<_> = shown["rules"].as_array().unwrap().iter().map(|r| (&r["port"], &r["number"])).collect();
    assert_eq!(
        format!("{numbers:?}"),
        "[(Null, Number(1)), (Null, Number(0)), (String(\"vm1\"), Number(1)), (String(\"vm1\"), Number(0))]"
    );
    let macs = "--eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02 --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --dport 9";
    let text = w.ok(&format!("trace --in-port vm1 {macs}"));
    assert!(text.contains("guests access list, from-guest at vm1: rule 1 decides: deny udp to any port 9\n"), "{text}");
    assert!(text.ends_with("result  dropped\n"), "{text}");
    // A set longer than one call, from standard input's stand-in; and what is wrong with files.
    let long = "@1.2.3.4/32\t4.3.2.1/32\t0 : 65535\t80 : 80\t0x06/0xff\n".repeat(5000);
    let long = file("long", &long);
    assert!(
        w.ok(&format!("acl load {long} --action permit"))
            .contains("from guests 5000 rules, default permit; to guests no list")
    );
    let bad = file("bad", "permit any\npermit tcp to 10.0.0.0/40\n");
    let error = w.error(&format!("acl load {bad}"), 1);
    assert!(error.contains("/bad: line 2, column 15: \"10.0.0.0/40\": expected a prefix length"), "{error}");
    assert!(error.contains("; nothing was changed"), "{error}");
    std::fs::write(&bad, b"permit any\n\xff\xfe").unwrap();
    assert!(w.error(&format!("acl load {bad}"), 1).contains("line 2: not UTF-8 text; is this a file of rules?"));
    assert!(w.error("acl load /nonexistent/rules", 1).contains("/nonexistent/rules: No such file"));
    for line in ["acl clear --port vm9", "acl show --port vm9", "acl show --port vm1 --port vm9 --packets"] {
        let said = w.error(line, 1);
        assert!(said.contains("no port named \"vm9\" and no list for it; there are lists of guests, "), "{said}");
        assert!(said.contains("`lasthop port list` shows the ports"), "{said}");
    }
    assert!(
        w.error(&format!("acl load {good} --direction from-guest"), 1)
            .contains("line 3, column 8: this line is for to-guest")
    );
    assert!(w.error("acl load x --direction up", 2).contains("from-guest, to-guest"));
    assert_eq!(w.ok("acl clear"), "access lists of guests: cleared\n");
    assert_eq!(w.ok("acl clear --port vm1 --direction to-guest"), "access lists of port vm1: cleared to-guest\n");
    assert!(w.ok("acl show").starts_with("no access lists"));
    assert!(w.ok("acl show --port vm1").starts_with("no access list holds for vm1: every packet passes there; load"));
    assert!(w.ok("acl clear").starts_with("access lists of guests: there was no list, so nothing has changed; "));
    assert!(w.ok("acl clear --direction to-guest").contains("there was no to-guest list"));
    assert!(w.error("acl show --port vm9", 1).contains("there are no access lists at all"));
}

/// What used to surprise: an emptied file opened a port, a file of defaults seemed to say nothing, a guard against guests
/// stopped the network, and rules could not be there before their port.
#[test]
fn access_lists_say_whom_they_are_for() {
    let mut w = World::new(&["vm1", "vm2"]);
    let dir = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = dir.path().join("rules");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let load = |w: &mut World, text: &str, more: &str| w.ok(&format!("acl load {} {more}", file(text)));
    assert_eq!(
        load(&mut w, "default from-guest deny\ndefault to-guest deny", ""),
        "access lists of guests: from guests 0 rules, default deny; to guests 0 rules, default deny\n"
    );
    for empty in ["", "# deny udp\n", "for port vm1\n"] {
        let error = w.error(&format!("acl load {} --port vm1", file(empty)), 1);
        assert!(error.contains("no rule and no default") && error.contains("acl clear"), "{error}");
        assert!(error.contains("--allow-empty") && error.contains("nothing was changed"), "{error}");
    }
    let open = "access lists of port vm1: from guests 0 rules, default permit; to guests no list\n";
    assert_eq!(load(&mut w, "", "--port vm1 --allow-empty"), open);
    let uplinks = load(&mut w, "deny udp to any port 67", "--for uplinks");
    assert_eq!(uplinks, "access lists of uplinks: from guests 1 rule, default permit; to guests no list\n");
    assert!(load(&mut w, "for all\ndeny icmp", "").starts_with("access lists of guests and uplinks: "));
    let error = w.error(&format!("acl load {} --for uplinks", file("for guests\npermit any")), 1);
    assert!(error.contains("says that it is for guests, and it is to be loaded for uplinks"), "{error}");
    // Before its port is there; the name is said, in case it is a slip of the pen.
    let early = load(&mut w, "deny icmp", "--port vm9");
    assert!(early.starts_with("access lists of port vm9: from guests 1 rule"), "{early}");
    assert!(early.ends_with("there is no port vm9 yet; its lists are kept and hold when there is one\n"), "{early}");
    let shown = w.ok("acl show");
    for list in ["guests    from-guest", "uplinks   from-guest", "port vm1  from-guest", "port vm9  from-guest"] {
        assert!(shown.contains(list), "{shown}");
    }
    assert_eq!(w.ok("acl clear --for vm9"), "access lists of port vm9: cleared\n");
    assert_eq!(w.ok("acl clear --for all"), "access lists of guests and uplinks: cleared\n");
    assert!(w.error("acl clear --for all --port vm1", 2).contains("--port"));
}

/// What was kept under such a name made `acl.rules` unreadable, and the next `lasthop run` refused to start.
#[test]
fn lists_are_only_for_names_that_ports_can_have() {
    let mut w = World::new(&["vm1", "guest"]);
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules").display().to_string();
    std::fs::write(&rules, "deny icmp").unwrap();
    for option in ["--port", "--for"] {
        for name in ["", "zz\ndeny any", "c1,c2", "c 1", "ä"] {
            let said = complaint(&w.with(&["acl", "load", &rules, option, name]), 2);
            assert!(said.contains("port name") && said.contains("nothing was changed"), "{option} {name:?}: {said}");
        }
    }
    for (near, right) in [
        ("guest", "--for guests"),
        ("Guests", "--for guests"),
        ("uplink", "--for uplinks"),
        ("port", "--port NAME"),
        ("ports", "--port NAME"),
        ("both", "--for all"),
    ] {
        for command in [&["acl", "load", &rules, "--for", near][..], &["acl", "clear", "--for", near]] {
            let said = complaint(&w.with(command), 2);
            assert!(said.contains(right), "{command:?}: {said}");
        }
    }
    let said = complaint(&w.with(&["acl", "load", &rules, "--for", "vm9"]), 1);
    assert!(said.contains("there is no port vm9; use --port vm9 to load a list for a port to come"), "{said}");
    assert!(w.ok("acl show").starts_with("no access lists"), "nothing was changed");
    assert!(w.ok(&format!("acl load {rules} --for vm1")).starts_with("access lists of port vm1"));
    assert!(w.ok(&format!("acl load {rules} --port guest")).starts_with("access lists of port guest"));
    // The file says it itself.
    std::fs::write(&rules, "for port c1,c2\ndeny icmp").unwrap();
    assert!(w.error(&format!("acl load {rules}"), 1).contains("',' cannot be in a port name"));
}
