//! Who may depend on whom: each folder of crates is a room. The data plane's rooms see no policy, no protocol of the management
//! plane, no async runtime and no parser of configurations; the room that decides policy sees no guest memory. Ordinary dependencies count, through any
//! number of crates in between; what only tests or build scripts use does not.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// The most lines of code, comments and blank lines apart, that may be linked into `lasthop-switch` from its own crates.
pub const LINE_BUDGET: usize = 12_000;

/// Who is trusted with what, as the folders of the repository say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// `crates/shared`: linked into every process, and so into the switch.
    Shared,
    /// `crates/outside-switch`: shared by processes that map no guest memory.
    OutsideSwitch,
    /// `crates/switch` and `bin/lasthop-switch`: guest memory is mapped here.
    Switch,
    /// `bin/lasthop-device`: the same, and what a device has besides.
    Device,
    /// `crates/front-end` and `bin/lasthop-session`: what front-ends say is read here.
    FrontEnd,
    /// `crates/driver-domain`, `bin/lasthop-uplink` and `bin/lasthop-cable`, which are front-ends themselves.
    DriverDomain,
    /// `crates/management`, `bin/lasthop` and `bin/lasthop-control`: policy, and what talks to people.
    Management,
}

impl Room {
    /// The room of a folder, relative to the repository's root. Tests, benchmarks and tools are in none.
    fn of(folder: &Path) -> Option<Self> {
        let mut parts = folder.iter().filter_map(|part| part.to_str());
        match (parts.next()?, parts.next()?) {
            ("crates", "shared") => Some(Self::Shared),
            ("crates", "outside-switch") => Some(Self::OutsideSwitch),
            ("crates", "switch") | ("bin", "lasthop-switch") => Some(Self::Switch),
            ("bin", "lasthop-device") => Some(Self::Device),
            ("crates", "front-end") | ("bin", "lasthop-session") => Some(Self::FrontEnd),
            ("crates", "driver-domain") | ("bin", "lasthop-uplink" | "lasthop-cable") => Some(Self::DriverDomain),
            ("crates", "management") | ("bin", "lasthop" | "lasthop-control" | "lasthop-ovs" | "lasthop-flower") => {
                Some(Self::Management)
            }
            _ => None,
        }
    }

    /// May a crate of this room depend on the crate `name` of the room `other`?
    fn may_see(self, other: Self, name: &str) -> bool {
        match (self, other) {
            (Self::Shared | Self::OutsideSwitch | Self::Management, Self::Switch) => SEEN_BY_ALL.contains(&name),
            (Self::Shared | Self::Switch, Self::OutsideSwitch) => false,
            (Self::DriverDomain, Self::FrontEnd) => true,
            (Self::FrontEnd, Self::Switch) => SEEN_BY_SESSIONS.contains(&name) || SEEN_BY_ALL.contains(&name),
            (_, Self::FrontEnd | Self::DriverDomain | Self::Management | Self::Device) => self == other,
            _ => true,
        }
    }
}

/// What of the switch's crates every room may see: a frame's key and what a flow says. Neither touches guest memory.
const SEEN_BY_ALL: &[&str] = &["lasthop-flow", "lasthop-frame"];

/// What of the switch's crates a session process may see: what it asks the switch, and the region for rings in flight, which it maps.
const SEEN_BY_SESSIONS: &[&str] = &["lasthop-connection", "lasthop-guestmem", "lasthop-virtqueue"];

/// What none but management may see: async runtimes and what drags one in …
const RUNTIMES: &[&str] = &[
    "actix-rt",
    "async-executor",
    "async-global-executor",
    "async-io",
    "async-std",
    "compio",
    "embassy-executor",
    "futures-executor",
    "glommio",
    "monoio",
    "smol",
    "tokio",
    "tokio-uring",
    "zbus",
    "zlink",
    "zlink-smol",
    "zlink-tokio",
];

/// … and parsers of configurations and command lines.
const PARSERS: &[&str] = &[
    "argh",
    "basic-toml",
    "clap",
    "clap_builder",
    "config",
    "figment",
    "json5",
    "lexopt",
    "pico-args",
    "rust-ini",
    "serde_json",
    "serde_yaml",
    "serde_yml",
    "simd-json",
    "toml",
    "toml_edit",
    "yaml-rust2",
];

/// One package as far as walls are concerned.
struct Package {
    name: String,
    folder: PathBuf,
    /// Part of this workspace.
    ours: bool,
    room: Option<Room>,
    /// Ids of its ordinary dependencies.
    dependencies: Vec<String>,
}

/// The packages of a workspace and what each depends on, by package id.
pub struct Graph(BTreeMap<String, Package>);

impl Graph {
    /// From the output of `cargo metadata --format-version 1`.
    pub fn from_metadata(metadata: &Value) -> Result<Self, String> {
        let list = |v: &Value, what: &str| v.as_array().cloned().ok_or(format!("cargo metadata has no {what}"));
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let root = text(&metadata["workspace_root"]);
        let ours: BTreeSet<String> =
            list(&metadata["workspace_members"], "workspace_members")?.iter().map(text).collect();
        let mut all = BTreeMap::new();
        for package in list(&metadata["packages"], "packages")? {
            let manifest = text(&package["manifest_path"]);
            let folder = Path::new(&manifest).parent().unwrap_or(Path::new("")).to_owned();
            let (id, name) = (text(&package["id"]), text(&package["name"]));
            let is_ours = ours.contains(&id);
            let room = folder.strip_prefix(&root).ok().filter(|_| is_ours).and_then(Room::of);
            all.insert(id, Package { name, folder, ours: is_ours, room, dependencies: Vec::new() });
        }
        for node in list(&metadata["resolve"]["nodes"], "resolve.nodes")? {
            let Some(package) = all.get_mut(&text(&node["id"])) else { continue };
            for dependency in list(&node["deps"], "deps")? {
                let ordinary = list(&dependency["dep_kinds"], "dep_kinds")?.iter().any(|k| k["kind"].is_null());
                if ordinary {
                    package.dependencies.push(text(&dependency["pkg"]));
                }
            }
        }
        Ok(Self(all))
    }

    /// One sentence for every dependency that breaks a wall, with the way it came in.
    pub fn breaches(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (id, package) in &self.0 {
            let Some(room) = package.room else { continue };
            for (other, way) in self.reach(id) {
                let Some(other) = self.0.get(&other) else { continue };
                let outside = RUNTIMES.contains(&other.name.as_str()) || PARSERS.contains(&other.name.as_str());
                let seen = match other.room {
                    Some(theirs) => room.may_see(theirs, &other.name),
                    None => room == Room::Management || !outside,
                };
                if !seen {
                    let way: Vec<&str> = way.iter().map(|id| self.name(id)).collect();
                    found.push(format!("{} must not depend on {}: {}", package.name, other.name, way.join(" → ")));
                }
            }
        }
        found
    }

    /// The workspace's crates that are linked into `binary`, with their folders.
    pub fn trusted(&self, binary: &str) -> Result<BTreeMap<String, PathBuf>, String> {
        let (id, _) = self.0.iter().find(|(_, p)| p.ours && p.name == binary).ok_or(format!("no package {binary}"))?;
        let all = self.reach(id).into_iter().map(|(id, _)| id);
        let ours = all.filter_map(|id| self.0.get(&id)).filter(|p| p.ours);
        Ok(ours.map(|p| (p.name.clone(), p.folder.clone())).collect())
    }

    /// Crates of others that are linked into `binary` or run while it is compiled, with their folders.
    pub fn foreign(&self, binary: &str) -> Vec<(String, PathBuf)> {
        let Some((id, _)) = self.0.iter().find(|(_, p)| p.ours && p.name == binary) else { return Vec::new() };
        let all = self.reach(id).into_iter().filter_map(|(id, _)| self.0.get(&id)).filter(|p| !p.ours);
        all.map(|p| (p.name.clone(), p.folder.clone())).collect()
    }

    /// Everything `id` depends on, itself included, each with a shortest way to it.
    fn reach<'a>(&'a self, id: &'a str) -> Vec<(String, Vec<&'a str>)> {
        let mut seen = BTreeSet::from([id]);
        let mut queue = VecDeque::from([vec![id]]);
        let mut found = Vec::new();
        while let Some(way) = queue.pop_front() {
            let Some(last) = way.last() else { continue };
            for next in self.0.get(*last).into_iter().flat_map(|p| &p.dependencies) {
                if seen.insert(next) {
                    queue.push_back([&way[..], &[next]].concat());
                }
            }
            found.push(((*last).to_owned(), way));
        }
        found
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.0.get(id).map_or(id, |p| &p.name)
    }
}

/// The features of each crate, from `cargo tree --prefix none --format "{p}\t{f}"`.
pub fn features(tree: &str) -> BTreeMap<String, BTreeSet<String>> {
    let lines = tree.lines().filter_map(|l| l.split_once('\t'));
    let named = lines.filter_map(|(package, features)| Some((package.split(' ').next()?.to_owned(), features)));
    // Cargo marks repeated lines with " (*)" at the end.
    let set = |f: &str| f.trim_end_matches(" (*)").split(',').filter(|f| !f.is_empty()).map(String::from).collect();
    named.map(|(name, f)| (name, set(f))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Metadata of a workspace: crates whose name starts with `lasthop` are its own; `(from, to, kind)`.
    fn graph(edges: &[(&str, &str, Option<&str>)]) -> Graph {
        let names: BTreeSet<&str> = edges.iter().flat_map(|(a, b, _)| [*a, *b]).collect();
        let node = |n: &str| {
            let deps = edges.iter().filter(|(a, _, _)| *a == n);
            let deps: Vec<_> = deps.map(|(_, b, k)| json!({"pkg": b, "dep_kinds": [{"kind": k}]})).collect();
            json!({"id": n, "deps": deps})
        };
        let folder = |n: &str| match n {
            "lasthop-switch" | "lasthop-control" | "lasthop-ovs" => format!("bin/{n}"),
            "lasthop-policy" => format!("crates/management/{n}"),
            "lasthop-uplink-core" => format!("crates/driver-domain/{n}"),
            "lasthop-vhostuser" => format!("crates/front-end/{n}"),
            "lasthop-ipc" => format!("crates/shared/{n}"),
            "lasthop-log" => format!("crates/outside-switch/{n}"),
            _ if n.starts_with("lasthop") => format!("crates/switch/{n}"),
            _ => format!("registry/{n}"),
        };
        let package = |n: &&str| json!({"id": n, "name": n, "manifest_path": format!("/w/{}/Cargo.toml", folder(n))});
        let metadata = json!({
            "workspace_root": "/w",
            "packages": names.iter().map(package).collect::<Vec<_>>(),
            "workspace_members": names.iter().filter(|n| n.starts_with("lasthop")).collect::<Vec<_>>(),
            "resolve": {"nodes": names.iter().map(|n| node(n)).collect::<Vec<_>>()},
        });
        Graph::from_metadata(&metadata).unwrap()
    }

    #[test]
    fn a_clean_workspace_has_no_breach() {
        let g = graph(&[
            ("lasthop-switch", "lasthop-forward", None),
            ("lasthop-forward", "lasthop-guestmem", None),
            ("lasthop-control", "lasthop-policy", None),
            ("lasthop-control", "tokio", None),
        ]);
        assert_eq!(g.breaches(), [""; 0]);
        let trusted: Vec<String> = g.trusted("lasthop-switch").unwrap().into_keys().collect();
        assert_eq!(trusted, ["lasthop-forward", "lasthop-guestmem", "lasthop-switch"]);
        assert!(g.trusted("lasthop-nothing").is_err());
    }

    #[test]
    fn a_runtime_behind_other_crates_is_found_with_its_way() {
        let g = graph(&[
            ("lasthop-forward", "lasthop-flow", None),
            ("lasthop-flow", "nice-cache", None),
            ("nice-cache", "tokio", None),
        ]);
        assert_eq!(
            g.breaches(),
            [
                "lasthop-flow must not depend on tokio: lasthop-flow → nice-cache → tokio",
                "lasthop-forward must not depend on tokio: lasthop-forward → lasthop-flow → nice-cache → tokio",
            ]
        );
    }

    #[test]
    fn policy_and_parsers_stay_out_of_the_data_plane_and_guest_memory_out_of_policy() {
        let g = graph(&[
            ("lasthop-switch", "lasthop-policy", None),
            ("lasthop-ipc", "serde_json", None),
            ("lasthop-policy", "lasthop-virtqueue", None),
            ("lasthop-virtqueue", "lasthop-guestmem", None),
        ]);
        let found = g.breaches();
        for breach in [
            "lasthop-switch must not depend on lasthop-policy",
            "lasthop-ipc must not depend on serde_json",
            "lasthop-policy must not depend on lasthop-virtqueue",
            "lasthop-policy must not depend on lasthop-guestmem",
        ] {
            assert!(found.iter().any(|b| b.starts_with(breach)), "{breach} is not in {found:?}");
        }
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn every_room_sees_what_its_folder_says() {
        let g = graph(&[
            ("lasthop-forward", "lasthop-uplink-core", None),
            ("lasthop-uplink-core", "lasthop-virtqueue", None),
            ("lasthop-policy", "lasthop-flow", None),
            ("lasthop-ipc", "lasthop-frame", None),
            ("lasthop-ipc", "lasthop-guestmem", None),
            ("lasthop-schedule", "lasthop-vhostuser", None),
            ("lasthop-vhostuser", "lasthop-guestmem", None),
            ("lasthop-vhostuser", "lasthop-tables", None),
        ]);
        assert_eq!(
            g.breaches(),
            [
                "lasthop-forward must not depend on lasthop-uplink-core: lasthop-forward → lasthop-uplink-core",
                "lasthop-ipc must not depend on lasthop-guestmem: lasthop-ipc → lasthop-guestmem",
                "lasthop-schedule must not depend on lasthop-vhostuser: lasthop-schedule → lasthop-vhostuser",
                "lasthop-vhostuser must not depend on lasthop-tables: lasthop-vhostuser → lasthop-tables",
            ]
        );
        assert_eq!(Room::of(Path::new("tests/vm")), None);
    }

    #[test]
    fn what_is_shared_outside_the_switch_never_gets_into_it() {
        let g = graph(&[
            ("lasthop-control", "lasthop-log", None),
            ("lasthop-uplink-core", "lasthop-log", None),
            ("lasthop-vhostuser", "lasthop-log", None),
            ("lasthop-ipc", "lasthop-log", None),
            ("lasthop-log", "lasthop-guestmem", None),
        ]);
        let found = g.breaches();
        for breach in [
            "lasthop-ipc must not depend on lasthop-log: lasthop-ipc → lasthop-log",
            "lasthop-log must not depend on lasthop-guestmem: lasthop-log → lasthop-guestmem",
        ] {
            assert!(found.iter().any(|b| b == breach), "{breach} is not in {found:?}");
        }
        let switch = graph(&[("lasthop-switch", "lasthop-forward", None), ("lasthop-forward", "lasthop-log", None)]);
        let ways = ["lasthop-forward → lasthop-log", "lasthop-switch → lasthop-forward → lasthop-log"];
        let from = |way: &str| way.split(' ').next().unwrap_or_default().to_owned();
        assert_eq!(switch.breaches(), ways.map(|way| format!("{} must not depend on lasthop-log: {way}", from(way))));
    }

    #[test]
    fn what_only_tests_or_build_scripts_use_does_not_count() {
        let g = graph(&[
            ("lasthop-ipc", "tokio", Some("dev")),
            ("lasthop-frame", "toml", Some("build")),
            ("lasthop-frame", "lasthop-ipc", None),
        ]);
        assert_eq!(g.breaches(), [""; 0]);
    }

    #[test]
    fn features_of_a_tree() {
        let all = features(
            "lasthop-frame v0.1.0 (/w/crates/switch/frame)\tdefault,testutil\nlasthop-types v0.1.0 (/w)\t (*)\n",
        );
        assert_eq!(all["lasthop-frame"], BTreeSet::from(["default".into(), "testutil".into()]));
        assert!(all["lasthop-types"].is_empty());
    }

    #[test]
    fn metadata_of_another_shape_is_an_error() {
        assert!(Graph::from_metadata(&json!({})).is_err());
    }
}
