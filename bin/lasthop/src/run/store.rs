//! What outlives a run: ports added at run time in `STATE_DIR/ports.json`, access lists in `STATE_DIR/acl.rules`, engines set at run time in
//! `STATE_DIR/engines.json`.

mod faults;

use super::engines::EnginesOfRun;
use super::owner::FileOwner;
use lasthop_policy::Batch;
use lasthop_policy::{Mirror, PortSettings, Vlans, acl::Book};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Version of the file's format.
const VERSION: u32 = 1;

/// A remembered port. Numbers are not kept: they are unique only while `lasthop run` lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPort {
    /// Its name.
    pub name: String,
    /// Its socket's path.
    pub path: String,
    /// Whether lasthop connects.
    #[serde(default)]
    pub client: bool,
    /// How its packets are gathered, if not like all ports'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_batch: Option<Batch>,
    /// Who may use it, if not whoever may open the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<FileOwner>,
}

/// A remembered uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedUplink {
    /// Its name.
    pub name: String,
    /// Its interface.
    pub device: String,
    /// How to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Queue pairs.
    pub queues: u16,
    /// Its processes' priority, as of nice(1).
    #[serde(default)]
    pub nice: i32,
    /// Without receive aggregation of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_gro: bool,
    /// Whether a second process stands by.
    #[serde(default)]
    pub spare: bool,
    /// The VLANs that it carries; none given: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<Vlans>,
    /// It is a guest's port (`port add --device`), not an uplink.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guest: bool,
    /// Open vSwitch wanted it, and decides what becomes of its packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_ovs: bool,
}

impl SavedUplink {
    /// What people call it.
    pub fn kind(&self) -> &'static str {
        if self.guest { "port" } else { "uplink" }
    }
}

/// What is remembered in `ports.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Ports.
    pub ports: Vec<SavedPort>,
    /// Uplinks.
    pub uplinks: Vec<SavedUplink>,
    /// TAP devices that lasthop has made and not removed, and their addresses.
    pub taps: BTreeMap<String, String>,
    /// What ports are told to do, by name: ports of the command line too.
    pub settings: BTreeMap<String, PortSettings>,
    /// Mirrors, by name.
    pub mirrors: Vec<Mirror>,
    /// Of a device: the ports and uplinks that are there and on its command line, by name.
    pub given: BTreeMap<String, SavedGiven>,
}

/// A port or uplink of a device's command line. What another release says of it besides is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedGiven {
    /// The number of the device's first start since which it is there. What was told before another one does not hold.
    pub start: u32,
    /// The VLANs that it carries; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<Vlans>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    ports: Vec<SavedPort>,
    #[serde(default)]
    uplinks: Vec<SavedUplink>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    taps: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    settings: BTreeMap<String, PortSettings>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mirrors: Vec<Mirror>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "those_of_a_start")]
    given: BTreeMap<String, SavedGiven>,
}

/// What has no number of a start was written by another release, and is of none that this one could go on with.
fn those_of_a_start<'de, D: Deserializer<'de>>(given: D) -> Result<BTreeMap<String, SavedGiven>, D::Error> {
    let is_start = |of: &Value| of["start"].as_u64().is_some_and(|start| u32::try_from(start).is_ok());
    let given = BTreeMap::<String, Value>::deserialize(given)?.into_iter().filter(|(_, of)| is_start(of));
    given.map(|(name, of)| Ok((name, SavedGiven::deserialize(of).map_err(D::Error::custom)?))).collect()
}

/// The files.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    lists: PathBuf,
    engines: PathBuf,
    /// What was in them when they were last read or written.
    known: Cell<Option<u64>>,
    known_lists: Cell<Option<u64>>,
    known_settings: RefCell<BTreeMap<String, PortSettings>>,
    /// What was found in `ports.json`, `acl.rules` and `engines.json` by who looked for faults last.
    looked: RefCell<[Option<faults::Looked>; 3]>,
}

/// Both files, read once more.
#[derive(Debug)]
pub struct Again {
    /// What is in `ports.json`.
    pub saved: Saved,
    /// What ports are told there that was otherwise when it was last read or written; the default where it says nothing any more.
    pub settings: BTreeMap<String, PortSettings>,
    /// The text of the access lists; empty if there is no file.
    pub lists: Vec<u8>,
}

/// Tells what is in a file from anything else that somebody may write into it.
fn content(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&parts.concat());
    hasher.finish()
}

/// What a command must not do to a file that somebody has edited.
fn edited(what: &str) -> io::Error {
    let pid = std::process::id();
    io::Error::other(format!(
        "somebody has changed this file since lasthop last read or wrote it, and that would be lost; `kill -HUP {pid}` has it \
         read, to {what}, or says in the log what is wrong with it; or move it away, and what is in force is written"
    ))
}

/// Replaces a file, unless it is otherwise than it was known to be: a crash at any moment leaves either the old one or the new one.
fn write(path: &Path, parts: &[&[u8]], known: &Cell<Option<u64>>, what: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    match fs::read(path) {
        Ok(there) if known.get() != Some(content(&[&there])) => {
            let _ = fs::remove_file(&new);
            return Err(edited(what));
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::rename(&new, path)?;
    known.set(Some(content(parts)));
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

impl Store {
    /// That of the directory `dir`, and what is in it.
    pub fn loaded(dir: &Path) -> Result<(Self, Saved), String> {
        let store = Self::new(dir);
        let saved = store.load()?;
        Ok((store, saved))
    }

    /// In the directory `dir`, which exists.
    pub fn new(dir: &Path) -> Self {
        let (known, known_lists, known_settings, looked) = Default::default();
        let file = |name| dir.join(name);
        let (file, lists, engines) = (file("ports.json"), file("acl.rules"), file("engines.json"));
        Self { file, lists, engines, known, known_lists, known_settings, looked }
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self) -> ([Option<u64>; 2], BTreeMap<String, PortSettings>) {
        ([self.known.get(), self.known_lists.get()], self.known_settings.borrow().clone())
    }

    /// Goes on with it.
    pub fn resumed(dir: &Path, (known, settings): ([Option<u64>; 2], BTreeMap<String, PortSettings>)) -> Self {
        let store = Self::new(dir);
        store.known.set(known[0]);
        store.known_lists.set(known[1]);
        store.known_settings.replace(settings);
        store
    }

    /// Reads ports and uplinks; none if there is no file. A file that cannot be understood is left as it is, and the error
    /// names it.
    pub fn load(&self) -> Result<Saved, String> {
        let (read, content) = self.load_ports()?;
        let saved = read.unwrap_or_default();
        self.known.set(content);
        self.known_settings.replace(saved.settings.clone());
        Ok(saved)
    }

    /// Both files once more, where something is in force that must not go because its file has gone. On an error neither counts as
    /// read: what somebody has written there is not overwritten.
    pub fn load_again(&self, ports_in_force: bool, lists_in_force: bool) -> Result<Again, String> {
        let (read, content) = self.load_ports()?;
        if read.is_none() && (ports_in_force || !self.known_settings.borrow().is_empty()) {
            return Err(format!("{} is missing; `lasthop port del` removes ports", self.file.display()));
        }
        let (lists, lists_content) = self.read_lists()?;
        // A file that is there is never empty: it has its first line.
        if lists.is_empty() && lists_in_force {
            return Err(format!("{} is missing; `lasthop acl clear` removes lists", self.lists.display()));
        }
        let saved = read.unwrap_or_default();
        self.known.set(content);
        self.known_lists.set(lists_content);
        let settings = self.changed_settings(&saved.settings);
        self.known_settings.replace(saved.settings.clone());
        Ok(Again { saved, settings, lists })
    }

    fn changed_settings(&self, new: &BTreeMap<String, PortSettings>) -> BTreeMap<String, PortSettings> {
        let old = self.known_settings.borrow();
        let names = old.keys().chain(new.keys()).filter(|name| old.get(*name) != new.get(*name));
        names.map(|name| (name.clone(), new.get(name).cloned().unwrap_or_default())).collect()
    }

    /// With what is in the file; nothing if there is none.
    fn load_ports(&self) -> Result<(Option<Saved>, Option<u64>), String> {
        let shown = self.file.display();
        let text = match fs::read_to_string(&self.file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((None, None)),
            Err(e) => {
                return Err(format!("{shown}: {e}; make it readable, or move it away to start without its ports"));
            }
            Ok(text) => text,
        };
        let Document { ports, mut uplinks, taps, settings, mut mirrors, given, .. } = self.understand(&text)?;
        for left in uplinks.extract_if(.., |uplink| super::capture_file::is_left_over(uplink)) {
            tracing::warn!("{}: left over by a capture that has ended; it is forgotten, with its mirror", left.name);
            mirrors.retain(|mirror| mirror.to != left.name);
        }
        Ok((Some(Saved { ports, uplinks, taps, settings, mirrors, given }), Some(content(&[text.as_bytes()]))))
    }

    /// The text of `ports.json`, if all of it makes sense.
    fn understand(&self, text: &str) -> Result<Document, String> {
        let shown = self.file.display();
        let wrong = |what: String| format!("{shown}: {what}; repair it, or move it away to start without its ports");
        let document: Document = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        if document.version != VERSION {
            return Err(wrong(format!("format {} is not format {VERSION} of this lasthop", document.version)));
        }
        for port in &document.ports {
            lasthop_policy::check_name(&port.name).map_err(|e| wrong(format!("port {:?}: {e}", port.name)))?;
            if !Path::new(&port.path).is_absolute() {
                return Err(wrong(format!("port {:?}: {:?} is not an absolute path", port.name, port.path)));
            }
            if let Some(batch) = port.tx_batch {
                batch.check().map_err(|e| wrong(format!("port {:?}: tx_batch: {e}", port.name)))?;
            }
        }
        for uplink in &document.uplinks {
            super::args::check_uplink(uplink).map_err(|e| wrong(format!("uplink {:?}: {e}", uplink.name)))?;
        }
        for (n, mirror) in document.mirrors.iter().enumerate() {
            let others = document.mirrors.get(..n).unwrap_or_default();
            mirror.check(others).map_err(|e| wrong(format!("mirror {:?}: {e}", mirror.name)))?;
        }
        Ok(document)
    }

    /// Replaces what is remembered: all of them or, on an error, none.
    pub fn save(&self, Saved { ports, uplinks, taps, settings, mirrors, given }: Saved) -> Result<(), String> {
        let document = Document { version: VERSION, ports, uplinks, taps, settings, mirrors, given };
        let text = serde_json::to_vec_pretty(&document).map_err(io::Error::from);
        let written =
            text.and_then(|text| write(&self.file, &[&text, b"\n"], &self.known, "follow the ports that it names"));
        if written.is_ok() {
            self.known_settings.replace(document.settings);
        }
        written.map_err(|e| format!("{}: {e}; nothing was changed", self.file.display()))
    }

    /// The text of the access lists; empty if there is no file. One that cannot be understood is left as it is: to go on
    /// without it would open what somebody has closed.
    pub fn load_lists(&self) -> Result<Vec<u8>, String> {
        let (text, content) = self.read_lists()?;
        self.known_lists.set(content);
        Ok(text)
    }

    fn read_lists(&self) -> Result<(Vec<u8>, Option<u64>), String> {
        let shown = self.lists.display();
        let text = match fs::read_to_string(&self.lists) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), None)),
            Err(e) => return Err(self.wrong_lists(e)),
            Ok(text) => text,
        };
        self.understand_lists(&text)?;
        if Book::was_for_all(&text) {
            tracing::warn!(
                "{shown}: its general access lists hold for guests and for uplinks, as they did when they were loaded; `lasthop acl \
                 load` now loads those of guests, unless --for says otherwise"
            );
        }
        let content = content(&[text.as_bytes()]);
        Ok((text.into_bytes(), Some(content)))
    }

    /// The text of access lists, if it makes sense.
    fn understand_lists(&self, text: &str) -> Result<(), String> {
        Book::from_text(text).map(drop).map_err(|e| self.wrong_lists(e))
    }

    fn wrong_lists(&self, e: impl Display) -> String {
        format!("{}: {e}; repair it, or move it away to start without access lists", self.lists.display())
    }

    /// Engines as they were set at run time, if they were.
    pub fn load_engines(&self) -> Result<Option<EnginesOfRun>, String> {
        match fs::read_to_string(&self.engines) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.wrong_engines(e)),
            Ok(text) => self.understand_engines(&text).map(Some),
        }
    }

    /// The text of `engines.json`, if it makes sense.
    fn understand_engines(&self, text: &str) -> Result<EnginesOfRun, String> {
        serde_json::from_str(text).map_err(|e| self.wrong_engines(e))
    }

    fn wrong_engines(&self, e: impl Display) -> String {
        let shown = self.engines.display();
        format!("{shown}: {e}; repair it, or move it away to have the engines of the command line")
    }

    /// Replaces what is remembered of engines or, on an error, nothing. Nothing is remembered that the command line says as well.
    pub fn save_engines(&self, engines: &EnginesOfRun) -> Result<(), String> {
        let written = if engines.given == engines.now {
            fs::remove_file(&self.engines).or_else(|e| match e.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            })
        } else {
            // Whoever edits it does so for the next start, and is overruled by who sets them now.
            let known = Cell::new(fs::read(&self.engines).ok().map(|text| content(&[&text])));
            let text = serde_json::to_vec_pretty(engines).map_err(io::Error::from);
            text.and_then(|text| write(&self.engines, &[&text, b"\n"], &known, "have them"))
        };
        written.map_err(|e| format!("{}: {e}", self.engines.display()))
    }

    /// Replaces the text of the access lists or, on an error, nothing.
    pub fn save_lists(&self, text: &[u8]) -> Result<(), String> {
        let written = write(&self.lists, &[text], &self.known_lists, "put its lists in force");
        written.map_err(|e| format!("{}: {e}; nothing was changed", self.lists.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_policy::Mirrored;

    #[test]
    fn ports_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        assert_eq!(store.load().unwrap(), Saved::default());
        let ports = vec![
            SavedPort {
                name: "vm1".into(),
                path: "/run/vm 1\".sock".into(),
                client: false,
                tx_batch: None,
                owner: Some("alice:kvm".parse().unwrap()),
            },
            SavedPort {
                name: "vm2".into(),
                path: "/run/ü.sock".into(),
                client: true,
                tx_batch: Some(Batch { us: 250, packets: 32 }),
                owner: None,
            },
        ];
        let uplinks = vec![SavedUplink {
            name: "up0".into(),
            device: "eth0".into(),
            driver: None,
            queues: 2,
            nice: -5,
            no_gro: false,
            spare: true,
            vlans: Some("untagged:10:20-30".parse().unwrap()),
            guest: true,
            for_ovs: true,
        }];
        let taps = [("lh0".to_owned(), "02:00:00:00:00:07".to_owned())].into();
        let settings = [("vm2".to_owned(), "vlan=10 isolated=on".to_owned().try_into().unwrap())].into();
        let (name, from) = ("tap".into(), vec!["vm1".into(), "not.there".into()]);
        let mirrors =
            vec![Mirror { name, from, to: "vm2".into(), direction: Mirrored::FromGuest, sample: 100, labelled: false }];
        let given = |vlans: Option<&str>| SavedGiven { start: u32::MAX, vlans: vlans.map(|v| v.parse().unwrap()) };
        let given = [("wire".to_owned(), given(Some("untagged:10"))), ("vm3".to_owned(), given(None))].into();
        let saved = Saved { ports, uplinks, taps, settings, mirrors, given };
        store.save(saved.clone()).unwrap();
        assert_eq!(store.load().unwrap(), saved);
        store.save(Saved::default()).unwrap();
        assert_eq!(store.load().unwrap(), Saved::default());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    /// A capture ends with its command.
    #[test]
    fn what_a_capture_left_in_the_file_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let port = |name: &str, device: &str, driver: &str| SavedUplink {
            name: name.into(),
            device: device.into(),
            driver: Some(driver.into()),
            queues: 1,
            nice: 0,
            no_gro: false,
            spare: false,
            vlans: None,
            guest: true,
            for_ovs: false,
        };
        let mirror = |to: &str| Mirror {
            name: to.into(),
            from: vec!["vm1".into()],
            to: to.into(),
            direction: Mirrored::Both,
            sample: 1,
            labelled: false,
        };
        let kept = port("log", "/var/log/lasthop-log", "file");
        let left = [port("capture-7", "/tmp/lasthop-capture-7", "file"), port("capture-8", "/run/x/pipe", "pipe:0")];
        let uplinks = [&[kept.clone()][..], &left].concat();
        let mirrors = ["capture-7", "capture-8", "log"].map(mirror).to_vec();
        store.save(Saved { uplinks, mirrors, ..Saved::default() }).unwrap();
        let saved = store.load().unwrap();
        assert_eq!((saved.uplinks, saved.mirrors), (vec![kept], vec![mirror("log")]));
    }

    #[test]
    fn a_file_of_before_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let text = "{\"version\":1,\"ports\":[{\"name\":\"vm1\",\"path\":\"/x\",\"client\":true}]}";
        std::fs::write(dir.path().join("ports.json"), text).unwrap();
        let ports = Store::new(dir.path()).load().unwrap().ports;
        assert_eq!(
            ports,
            [SavedPort { name: "vm1".into(), path: "/x".into(), client: true, tx_batch: None, owner: None }]
        );
    }

    /// What another release has written of a device's command line is of no start that this one knows.
    #[test]
    fn what_a_device_was_given_in_another_form_is_of_another_start() {
        let dir = tempfile::tempdir().unwrap();
        for (text, read) in [
            (r#"{"vm1":null,"wire":"untagged:10"}"#, vec![]),
            (r#"{"vm1":{"option":123456789012345678,"vlans":"10"}}"#, vec![]),
            (r#"{"vm1":[1],"vm2":{"start":7,"more":1},"vm3":{"start":"8"}}"#, vec![("vm2", 7)]),
        ] {
            std::fs::write(dir.path().join("ports.json"), format!(r#"{{"version":1,"ports":[],"given":{text}}}"#))
                .unwrap();
            let given = Store::new(dir.path()).load().expect(text).given;
            let saved = |(name, start): (&str, u32)| (name.to_owned(), SavedGiven { start, vlans: None });
            assert_eq!(given, read.into_iter().map(saved).collect(), "{text}");
        }
    }

    #[test]
    fn access_lists_come_back_and_a_broken_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (store, file) = (Store::new(dir.path()), dir.path().join("acl.rules"));
        assert_eq!(store.load_lists().unwrap(), b"");
        let text = Book::default().to_text();
        store.save_lists(text.as_bytes()).unwrap();
        assert_eq!(store.load_lists().unwrap(), text.as_bytes());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
        for broken in ["", "permit any\n", &text[..text.len() - 4], "\u{0}"] {
            std::fs::write(&file, broken).unwrap();
            let error = store.load_lists().unwrap_err();
            assert!(error.starts_with(file.to_str().unwrap()) && error.contains("move it away"), "{error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), broken);
        }
    }

    #[test]
    fn a_broken_file_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (store, file) = (Store::new(dir.path()), dir.path().join("ports.json"));
        for text in [
            "",
            "{",
            "{\"version\":2,\"ports\":[]}",
            "{\"version\":1,\"ports\":[{\"name\":\"a\"}]}",
            "{\"version\":1,\"ports\":[{\"name\":\"a b\",\"path\":\"/x\"}]}",
            "{\"version\":1,\"ports\":[{\"name\":\"a\",\"path\":\"x\"}]}",
            "{\"version\":1,\"ports\":[{\"name\":\"a\",\"path\":\"/x\",\"speed\":1}]}",
            "{\"version\":1,\"ports\":[{\"name\":\"a\",\"path\":\"/x\",\"tx_batch\":{\"us\":1,\"packets\":40000}}]}",
            "{\"version\":1,\"ports\":[],\"uplinks\":[{\"name\":\"a\",\"device\":\"b\",\"queues\":1,\"vlans\":\"5000\"}]}",
            "{\"version\":1,\"ports\":[],\"settings\":{\"a\":\"vlan=5000\"}}",
            "{\"version\":1,\"ports\":[],\"given\":{\"wire\":{\"start\":7,\"vlans\":\"5000\"}}}",
            "{\"version\":1,\"ports\":[],\"mirrors\":[{\"name\":\"m\",\"from\":[\"a\"],\"to\":\"a\",\"direction\":\"both\"}]}",
            "{\"version\":1,\"ports\":[],\"mirrors\":[{\"name\":\"m\",\"from\":[\"a\"],\"to\":\"b\",\"direction\":\"in\"}]}",
        ] {
            std::fs::write(&file, text).unwrap();
            let error = store.load().unwrap_err();
            assert!(error.starts_with(file.to_str().unwrap()), "{error}");
            assert!(error.contains("move it away"), "{error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
