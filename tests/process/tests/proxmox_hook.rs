//! Proxmox VE's hookscript (`packaging/proxmox/lasthop`), called as its tasks call it: `VMID PHASE`, the VM's configuration in a folder.

use lasthop_tests_process::{Lasthop, binary, scratch};
use std::path::Path;
use std::process::{Command, Output};

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/proxmox/lasthop");

fn call(lasthop: &Lasthop, dir: &Path, phase: &str) -> Output {
    Command::new(HOOK)
        .args(["100", phase])
        .env("LASTHOP", binary("lasthop"))
        .env("LASTHOP_RUN_DIR", lasthop.run_dir())
        .env("LASTHOP_PVE_DIR", dir)
        .env("LASTHOP_HOOK_DIR", dir.join("made"))
        .output()
        .unwrap()
}

/// A configuration as Proxmox VE writes it: notes with escapes, a VM's options, and a snapshot that is not meant.
fn configure(lasthop: &Lasthop, dir: &Path, notes: &str) {
    let path = |name: &str| lasthop.run_dir().join(name).display().to_string();
    let chardev = |id: &str, name: &str, more: &str| {
        format!("-chardev 'socket,id={id},path={}{more}' -netdev vhost-user,id=n{id},chardev={id}", path(name))
    };
    let args = [
        "-object memory-backend-memfd,id=m,size=2G,share=on -numa node,memdev=m".to_owned(),
        chardev("a", "web.sock", ",reconnect=1"),
        chardev("b", "db.sock", ",server=on,wait=off"),
        chardev("c", "old.sock", ""),
        "-chardev socket,id=qmp,path=/var/run/qemu-server/100.qmp,server=on,wait=off".to_owned(),
    ];
    let text = format!(
        "#a guest%3A of ours\n#{notes}\nargs: {}\ncores: 2\nname: web\n\n[before]\nargs: -chardev socket,id=x,path={}\n",
        args.join(" "),
        path("snapshot.sock")
    );
    std::fs::write(dir.join("100.conf"), text).unwrap();
}

fn names(lasthop: &Lasthop) -> Vec<String> {
    let ports = lasthop.json(&["port", "list"]);
    ports["ports"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn ports_come_with_the_vm_and_go_with_it() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    lasthop.command(&["port", "add", "old", &lasthop.run_dir().join("old.sock").display().to_string()]);
    configure(&lasthop, dir.path(), "lasthop%3A web --vlan 10 --mac 52%3A54%3A00%3A00%3A00%3A09");
    let ok = |phase: &str| {
        let out = call(&lasthop, dir.path(), phase);
        assert!(out.status.success(), "{phase}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(ok("pre-start"), "lasthop: port web made\nlasthop: port db made\n");
    assert_eq!(names(&lasthop), ["old", "web", "db"]);
    assert_eq!((&lasthop.port("web")["client"], &lasthop.port("db")["client"]), (&false.into(), &true.into()));
    let settings = lasthop.port("web")["settings"].to_string();
    assert!(settings.contains("\"10\"") && settings.contains("52:54:00:00:00:09"), "{settings}");
    ["post-start", "pre-stop"].into_iter().for_each(|phase| drop(ok(phase)));
    assert_eq!(names(&lasthop), ["old", "web", "db"], "there is nothing to do at other phases");
    // It was stopped by force, and nobody said so.
    ok("pre-start");
    assert_eq!(names(&lasthop), ["old", "web", "db"]);
    ok("post-stop");
    assert_eq!(names(&lasthop), ["old"], "what was there before stays");
    ok("post-stop");
}

#[test]
fn a_vm_whose_port_cannot_be_made_is_not_started() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    for (notes, why) in [("lasthop: db --vlan 5000", "port db: "), ("lasthop: db --vlan 'x", "No closing quotation")] {
        configure(&lasthop, dir.path(), notes);
        let out = call(&lasthop, dir.path(), "pre-start");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.starts_with("lasthop: ") && said.contains(why), "{said}");
        assert!(names(&lasthop).is_empty(), "what was made is taken back");
    }
    std::fs::remove_file(dir.path().join("100.conf")).unwrap();
    assert!(!call(&lasthop, dir.path(), "pre-start").status.success(), "there is no such VM");
}
