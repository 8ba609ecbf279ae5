//! `cargo xtask deb`: a package for Debian, of the release programs and of what is in `packaging/`.

use crate::{cargo, root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs that people do not type; `lasthop` looks for them there.
const LIBEXEC: [&str; 8] = [
    "lasthop-switch",
    "lasthop-device",
    "lasthop-cable",
    "lasthop-control",
    "lasthop-uplink",
    "lasthop-session",
    "lasthop-ovs",
    "lasthop-flower",
];
/// What Open vSwitch's programs are preloaded with; its crate has another name.
const LIBRARY: (&str, &str) = ("liblasthop_ovs.so", "lasthop-ovs-preload");
/// Documents that the package's files and messages name.
const DOCS: [&str; 8] = [
    "config.md",
    "commands.md",
    "troubleshooting.md",
    "vms.md",
    "prometheus.md",
    "grafana-dashboard.json",
    "prometheus-console.html",
    "prometheus-console.png",
];
/// Shells, and where completions for each are looked for.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/lasthop"),
    ("zsh", "usr/share/zsh/vendor-completions/_lasthop"),
    ("fish", "usr/share/fish/vendor_completions.d/lasthop.fish"),
];

/// Builds the package from the programs in `programs`, or from those that it builds, and prints its path.
pub fn run(programs: Option<&Path>) -> Result<(), String> {
    let programs = match programs {
        Some(folder) => folder.to_owned(),
        None => build()?,
    };
    let (out, version) = (root().join("target/deb"), env!("CARGO_PKG_VERSION"));
    let tree = out.join("tree");
    let _ = fs::remove_dir_all(&tree);
    stage(&programs, &tree)?;
    control(&tree, version)?;
    let package = out.join(format!("lasthop_{version}_amd64.deb"));
    let output = Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zzstd", "--build"])
        .args([&tree, &package])
        .output()
        .map_err(|e| format!("dpkg-deb: {e}; this chore needs Debian"))?;
    if !output.status.success() {
        return Err(format!("dpkg-deb: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let package = package.canonicalize().map_err(|e| format!("{}: {e}", package.display()))?;
    println!("{}", package.display());
    Ok(())
}

pub fn build() -> Result<PathBuf, String> {
    let packages = ["lasthop"].iter().chain(&LIBEXEC).chain([&LIBRARY.1]);
    // What is built together has the features of all: the switch is not to have the device's engine in it.
    let (device, others): (Vec<&str>, Vec<&str>) = packages.copied().partition(|package| *package == "lasthop-device");
    for packages in [others, device] {
        let packages = packages.into_iter().flat_map(|package| ["--package", package]);
        cargo(&["build", "--release"].into_iter().chain(packages).collect::<Vec<_>>())?;
    }
    Ok(root().join("target/release"))
}

/// All files but dpkg's own.
pub fn stage(programs: &Path, tree: &Path) -> Result<(), String> {
    let packaging = root().join("packaging");
    put(&programs.join("lasthop"), &tree.join("usr/bin/lasthop"), 0o755)?;
    for program in LIBEXEC {
        put(&programs.join(program), &tree.join("usr/libexec/lasthop").join(program), 0o755)?;
    }
    put(&programs.join(LIBRARY.0), &tree.join("usr/lib/lasthop").join(LIBRARY.0), 0o644)?;
    for unit in ["lasthop.service", "lasthop-metrics.service", "lasthop-history.service"] {
        put(&packaging.join(unit), &tree.join("usr/lib/systemd/system").join(unit), 0o644)?;
    }
    put(&packaging.join("lasthop.sysusers"), &tree.join("usr/lib/sysusers.d/lasthop.conf"), 0o644)?;
    put(&packaging.join("lasthop.toml"), &tree.join("etc/lasthop.toml"), 0o644)?;
    put(&packaging.join("apparmor/lasthop"), &tree.join("etc/apparmor.d/lasthop"), 0o644)?;
    let docs = tree.join("usr/share/doc/lasthop");
    put(&root().join("LICENSE"), &docs.join("copyright"), 0o644)?;
    for page in DOCS {
        put(&root().join("docs").join(page), &docs.join(page), 0o644)?;
    }
    put(&packaging.join("libvirt/lasthop"), &docs.join("libvirt-hook"), 0o755)?;
    put(&packaging.join("proxmox/lasthop"), &docs.join("proxmox-hook"), 0o755)?;
    let man = tree.join("usr/share/man/man1");
    fs::create_dir_all(&man).map_err(|e| format!("{}: {e}", man.display()))?;
    ask(programs, &["man", &man.display().to_string()])?;
    for (shell, path) in COMPLETIONS {
        write(&tree.join(path), &ask(programs, &["completions", shell])?, 0o644)?;
    }
    Ok(())
}

/// What an upgrade of either package runs: the function `replace`.
pub const REPLACE: &str = include_str!("../../packaging/replace.sh");

/// What dpkg reads and runs.
fn control(tree: &Path, version: &str) -> Result<(), String> {
    let deb = root().join("packaging/deb");
    let folder = tree.join("DEBIAN");
    for script in ["postinst", "prerm", "postrm"] {
        let path = deb.join(script);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        write(&folder.join(script), text.replace("REPLACE\n", REPLACE).as_bytes(), 0o755)?;
    }
    write(&folder.join("conffiles"), b"/etc/lasthop.toml\n/etc/apparmor.d/lasthop\n", 0o644)?;
    let kib = size(tree)?.div_ceil(1024);
    let text = format!(
        "Package: lasthop\nVersion: {version}\nArchitecture: amd64\nMaintainer: The lasthop developers <root@localhost>\n\
         Installed-Size: {kib}\nDepends: libc6 (>= 2.36), libgcc-s1, init-system-helpers, systemd | systemd-standalone-sysusers\n\
         Suggests: openvswitch-switch, prometheus, tcpdump\nSection: net\nPriority: optional\n\
         Description: last-hop switch for virtual machines\n \
         Carries packets between the VMs of one host, and between them and the network,\n for any virtio guest \
         whose machine speaks vhost-user.\n"
    );
    write(&folder.join("control"), text.as_bytes(), 0o644)
}

fn ask(programs: &Path, words: &[&str]) -> Result<Vec<u8>, String> {
    let output = Command::new(programs.join("lasthop")).args(words).output();
    let output = output.map_err(|e| format!("{}: {e}", programs.join("lasthop").display()))?;
    if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let bytes = fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
    write(to, &bytes, mode)
}

fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let failed = |e| format!("{}: {e}", to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(to, bytes).map_err(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Bytes of all files.
fn size(folder: &Path) -> Result<u64, String> {
    let failed = |e| format!("{}: {e}", folder.display());
    let mut sum = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let meta = entry.metadata().map_err(failed)?;
        sum += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(sum)
}
