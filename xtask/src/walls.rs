//! Who may depend on whom. A data-plane crate sees no policy, no protocol of the management plane, no async runtime and no
//! parser of configurations; a crate that decides policy sees no guest memory. Ordinary dependencies count, through any
//! number of crates in between; what only tests or build scripts use does not.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// The most lines of code, comments and blank lines apart, that may be linked into `lasthop-switch` from its own crates.
pub const LINE_BUDGET: usize = 12_000;

/// Crates of the data plane.
const DATA_PLANE: &[&str] = &[
    "lasthop-types",
    "lasthop-sys",
    "lasthop-guestmem",
    "lasthop-virtqueue",
    "lasthop-vhostuser",
    "lasthop-frame",
    "lasthop-flow",
    "lasthop-forward",
    "lasthop-schedule",
    "lasthop-ipc",
    "lasthop-switch",
    // Not linked into the switch, but held to the same.
    "lasthop-uplink",
    "lasthop-uplink-core",
];

/// What they must not see: our own crates that decide policy or talk to people …
const MANAGEMENT: &[&str] = &[
    "lasthop",
    "lasthop-api",
    "lasthop-control",
    "lasthop-hostview",
    "lasthop-openflow",
    "lasthop-ovsdb",
    "lasthop-policy",
];

/// … async runtimes and what drags one in …
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

/// What crates of [`MANAGEMENT`] must not see.
const GUEST_MEMORY: &[&str] = &["lasthop-guestmem", "lasthop-virtqueue"];

/// One package as far as walls are concerned.
struct Package {
    name: String,
    folder: PathBuf,
    /// Part of this workspace.
    ours: bool,
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
        let ours: BTreeSet<String> =
            list(&metadata["workspace_members"], "workspace_members")?.iter().map(text).collect();
        let mut all = BTreeMap::new();
        for package in list(&metadata["packages"], "packages")? {
            let manifest = text(&package["manifest_path"]);
            let folder = Path::new(&manifest).parent().unwrap_or(Path::new("")).to_owned();
            let (id, name) = (text(&package["id"]), text(&package["name"]));
            let is_ours = ours.contains(&id);
            all.insert(id, Package { name, folder, ours: is_ours, dependencies: Vec::new() });
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
        for (id, package) in self.0.iter().filter(|(_, p)| p.ours) {
            let forbidden: Vec<&str> = match package.name.as_str() {
                n if DATA_PLANE.contains(&n) => [MANAGEMENT, RUNTIMES, PARSERS].concat(),
                n if MANAGEMENT.contains(&n) => GUEST_MEMORY.to_vec(),
                _ => continue,
            };
            for (other, way) in self.reach(id) {
                if forbidden.contains(&self.name(&other)) {
                    let way: Vec<&str> = way.iter().map(|id| self.name(id)).collect();
                    found.push(format!(
                        "{} must not depend on {}: {}",
                        package.name,
                        self.name(&other),
                        way.join(" → ")
                    ));
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
        let package = |n: &&str| json!({"id": n, "name": n, "manifest_path": format!("/w/{n}/Cargo.toml")});
        let metadata = json!({
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
        let all =
            features("lasthop-frame v0.1.0 (/w/crates/frame)\tdefault,testutil\nlasthop-types v0.1.0 (/w)\t (*)\n");
        assert_eq!(all["lasthop-frame"], BTreeSet::from(["default".into(), "testutil".into()]));
        assert!(all["lasthop-types"].is_empty());
    }

    #[test]
    fn metadata_of_another_shape_is_an_error() {
        assert!(Graph::from_metadata(&json!({})).is_err());
    }
}
