//! What is remembered in the state directory: at the next start, and at SIGHUP.

use crate::{Lasthop, Place, connect, wait_for_end};
use rustix::process::{Signal, kill_process};

pub fn ports_added_are_remembered_and_those_removed_are_not() {
    let place = Place::new();
    let (b, c) = (place.path("b.sock"), place.path("c.sock"));
    let given = ["--port", &place.port("a")];
    let mut lasthop = place.ready(&given);
    assert_eq!(place.ask(&format!("add b {} listen", b.display())), "ok 2");
    lasthop.wait(&["switch[", "add 2 b"]);
    let _front_end = connect(&b);
    lasthop.wait(&["switch[", "connection 2"]);
    assert_eq!(place.ask(&format!("add c {} client", c.display())), "ok 3");
    assert_eq!(place.ask("ports"), "1=a 2=b 3=c");
    // Wrong ones change nothing.
    for (request, word) in [
        (format!("add b {} listen", place.path("x").display()), "another name"),
        (format!("add x {} listen", b.display()), "port b"),
        ("add x relative listen".into(), "absolute"),
        (format!("add x/y {} listen", place.path("x").display()), "letters"),
        (format!("add x {} listen", place.path("none/x").display()), "no such directory"),
        (format!("add x {} listen", place.path("libexec").display()), "not a socket"),
        ("del x".into(), "port list"),
    ] {
        let answer = place.ask(&request);
        assert!(answer.starts_with("error ") && answer.contains(word), "{request}: {answer}");
    }
    assert_eq!(place.ask("ports"), "1=a 2=b 3=c");
    lasthop.end();
    assert!(!b.exists());

    let mut lasthop = place.ready(&given);
    assert_eq!(place.ask("ports"), "1=a 2=b 3=c");
    let mut front_end = connect(&b);
    lasthop.wait(&["switch[", "connection 2"]);
    assert_eq!(place.ask("del b"), "ok 2");
    lasthop.wait(&["switch[", "delete 2"]);
    wait_for_end(&mut front_end);
    assert!(!b.exists());
    assert_eq!(place.ask("del a"), "ok 1");
    assert!(!place.path("a.sock").exists());
    assert_eq!(place.ask(&format!("add d {} listen", b.display())), "ok 4", "numbers are not used again");
    assert_eq!(place.ask("ports"), "3=c 4=d");
    lasthop.end();

    let lasthop = place.ready(&given);
    assert_eq!(place.ask("ports"), "1=a 2=c 3=d", "the command line still asks for a");
    lasthop.end();
}

pub fn a_remembered_port_that_cannot_listen() {
    let place = Place::new();
    let lasthop = place.ready(&[]);
    std::fs::create_dir(place.path("sub")).unwrap();
    let path = place.path("sub/b.sock");
    assert_eq!(place.ask(&format!("add b {} listen", path.display())), "ok 1");
    lasthop.end();
    std::fs::remove_dir(place.path("sub")).unwrap();

    let mut lasthop = place.ready(&["--port", &place.port("a")]);
    lasthop.wait(&["WARN", "port b", "no such directory"]);
    assert_eq!(place.ask("ports"), "1=a 2=b");
    std::fs::create_dir(place.path("sub")).unwrap();
    lasthop.wait(&["port b: listening"]);
    let _front_end = connect(&path);
    lasthop.wait(&["switch[", "connection 2"]);
    lasthop.end();
}

/// SIGHUP with a file gone, by a slip of the hand or a disk that is not mounted: what is in force stays.
pub fn files_that_are_gone_open_nothing() {
    let place = Place::new();
    let (ports, lists) = (place.path("state/ports.json"), place.path("state/acl.rules"));
    let mut lasthop = place.ready(&["--port", &place.port("a")]);
    let hang_up = |lasthop: &mut Lasthop| {
        kill_process(lasthop.pid(), Signal::HUP).unwrap();
        lasthop.wait(&["SIGHUP: "])
    };
    let line = hang_up(&mut lasthop);
    assert!(line.contains("reloaded") && line.contains("0 ports added, 0 removed"), "never there: {line}");
    assert_eq!(place.ask(&format!("add b {} listen", place.path("b.sock").display())), "ok 2");
    std::fs::rename(&ports, place.path("kept")).unwrap();
    let line = hang_up(&mut lasthop);
    let gone = format!("nothing was reloaded: {} is missing; `lasthop port del` removes ports", ports.display());
    assert!(line.contains(&gone), "{line}");
    assert_eq!(place.ask("ports"), "1=a 2=b");
    std::fs::rename(place.path("kept"), &ports).unwrap();
    let book = "# lasthop access lists, format 2. `lasthop acl load` writes this file.\n\
                list from-guest deny guests\nend 1\n";
    std::fs::write(&lists, book).unwrap();
    let line = hang_up(&mut lasthop);
    assert!(line.contains("other access lists"), "{line}");
    std::fs::remove_file(&lists).unwrap();
    let line = hang_up(&mut lasthop);
    let gone = format!("nothing was reloaded: {} is missing; `lasthop acl clear` removes lists", lists.display());
    assert!(line.contains(&gone), "{line}");
    std::fs::write(&lists, book).unwrap();
    let line = hang_up(&mut lasthop);
    assert!(line.contains("the same access lists"), "those that were in force: {line}");
    lasthop.end();
}

/// Who writes a port and its VLAN into the file does not want it without one.
pub fn settings_in_the_file_are_followed() {
    let place = Place::new();
    let file = place.path("state/ports.json");
    let given = format!("{},vlan=7", place.port("a"));
    let mut lasthop = place.ready(&["--port", &given]);
    let hang_up = |lasthop: &mut Lasthop| {
        kill_process(lasthop.pid(), Signal::HUP).unwrap();
        lasthop.wait(&["SIGHUP: ", "reloaded"])
    };
    assert_eq!(place.ask("told"), "1=\"vlan=7\"");
    // What it makes control hear is heard before the answer to what is asked next.
    hang_up(&mut lasthop);
    assert_eq!(place.ask(&format!("add b {} listen", place.path("b.sock").display())), "ok 2");
    let told = place.ask("told");
    assert_eq!(told, "2=\"\"", "what the command line says is not in the file, which is not there");
    let line = hang_up(&mut lasthop);
    assert!(!line.contains("told something else"), "{line}");
    assert_eq!(place.ask("set b isolated=on"), "ok 2");
    assert_eq!(place.ask("told"), "2=\"isolated=on\"", "nobody has changed the file");

    let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let c = serde_json::json!({ "name": "c", "path": place.path("c.sock") });
    document["ports"].as_array_mut().unwrap().push(c);
    document["settings"]["c"] = "vlan=10 isolated=on rate-to=8M weight=300 rx-batch=250,32".into();
    document["settings"]["b"] = "vlan=20 storm=800k".into();
    document["settings"]["nobody"] = "vlan=30".into();
    std::fs::write(&file, document.to_string()).unwrap();
    kill_process(lasthop.pid(), Signal::HUP).unwrap();
    lasthop.wait(&["port b: told vlan=20 storm=800k"]);
    let line = lasthop.wait(&["SIGHUP: ", "reloaded"]);
    assert!(line.contains("1 port added, 0 removed, 1 port told something else"), "{line}");
    assert_eq!(place.ask("set a isolated=on"), "ok 1");
    let told = place.ask("told");
    assert_eq!(
        told,
        "2=\"vlan=20 storm=800k\" 3=\"vlan=10 isolated=on rate-to=8M weight=300 rx-batch=250,32\" 1=\"vlan=7 isolated=on\""
    );
    lasthop.wait(&["switch[", "limits 1 [0, 0, 0]"]);
    let seen = lasthop.seen.join("\n");
    for limits in [
        "limits 2 [0, 0, 100000] weight 100 batches (125, 64) (125, 64)",
        "limits 3 [0, 1000000, 0] weight 300 batches (125, 64) (250, 32)",
    ] {
        assert!(seen.contains(limits), "{limits}: {seen}");
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    for settings in
        ["\"vlan=20 storm=800k\"", "\"vlan=10 isolated=on rate-to=8M weight=300 rx-batch=250,32\"", "\"vlan=30\""]
    {
        assert!(kept.contains(settings), "the command leaves them: {kept}");
    }

    let document = kept.replace("\"b\": \"vlan=20 storm=800k\",", "");
    std::fs::write(&file, document).unwrap();
    let line = hang_up(&mut lasthop);
    assert!(line.contains("1 port told something else"), "{line}");
    assert_eq!(place.ask("set a isolated=off"), "ok 1");
    assert_eq!(place.ask("told"), "2=\"\" 1=\"vlan=7\"");
    lasthop.end();
}

/// `lasthop acl load --for` means something else by them. One that was remembered before stays.
pub fn words_of_access_lists_name_no_new_port() {
    let place = Place::new();
    let lasthop = place.ready(&[]);
    for word in ["guests", "uplinks", "all"] {
        let answer = place.ask(&format!("add {word} {} listen", place.path("x").display()));
        assert!(answer.starts_with("error ") && answer.contains("choose another name"), "{answer}");
    }
    assert_eq!(place.ask(&format!("add b {} listen", place.path("b.sock").display())), "ok 1");
    lasthop.end();
    let saved = std::fs::read_to_string(place.path("state/ports.json")).unwrap();
    std::fs::write(place.path("state/ports.json"), saved.replace("\"b\"", "\"all\"")).unwrap();
    let lasthop = place.ready(&[]);
    assert_eq!(place.ask("ports"), "1=all");
    lasthop.end();
}
