//! `cargo xtask rpm`: a package for distributions with rpm, of the files that the Debian package has.
//!
//! It is unsigned, and made without `rpmbuild`: what a spec file would say is here. Programs need the C library of the machine that they were
//! built on, or a newer one; the package says which.

use crate::deb;
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Scriptlet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const UNITS: &str = "lasthop.service lasthop-metrics.service lasthop-history.service";

/// Where files are that are elsewhere in Debian, and those that are left out there: Fedora has no AppArmor.
const MOVED: [(&str, Option<&str>); 3] = [
    ("usr/share/zsh/vendor-completions/", Some("usr/share/zsh/site-functions/")),
    ("usr/share/doc/lasthop/copyright", Some("usr/share/licenses/lasthop/LICENSE")),
    ("etc/apparmor.d/", None),
];

/// What is run when it has been installed or upgraded. Where systemd is not the first process, `systemctl` says so and nothing is started.
const AFTER: &str = "systemd-sysusers lasthop.conf >/dev/null 2>&1 || :\n\
    if [ \"$1\" -eq 1 ]; then systemctl --no-reload preset UNITS >/dev/null 2>&1 || :; fi\n\
    if [ -d /run/systemd/system ]; then systemctl daemon-reload >/dev/null 2>&1 || :; fi\n\
    exit 0\n";
const BEFORE_REMOVAL: &str =
    "if [ \"$1\" -eq 0 ]; then systemctl --no-reload disable --now UNITS >/dev/null 2>&1 || :; fi\nexit 0\n";
const AFTER_REMOVAL: &str =
    "if [ -d /run/systemd/system ]; then systemctl daemon-reload >/dev/null 2>&1 || :; fi\nexit 0\n";
/// The last of a transaction, and the new package's own. All processes are of one build: an upgrade replaces them one by one where that can be done, and else
/// together. `LASTHOP_RESTART=yes` has the service started anew all the same, and with `=no` it goes on with what it has. Nothing is started that did not run.
const AFTER_ALL: &str = "REPLACE\n\
    if [ -d /run/systemd/system ]; then\n\
    systemctl daemon-reload >/dev/null 2>&1 || :\n\
    if [ \"${LASTHOP_RESTART:-}\" = no ]; then :\n\
    elif [ \"${LASTHOP_RESTART:-}\" = yes ] || ! replace; then systemctl try-restart lasthop.service >/dev/null 2>&1 || :; fi\n\
    systemctl try-restart lasthop-metrics.service lasthop-history.service >/dev/null 2>&1 || :\n\
    fi\nexit 0\n";

/// Builds the package from the programs in `programs`, or from those that it builds, and prints its path.
pub fn run(programs: Option<&Path>) -> Result<(), String> {
    let programs = match programs {
        Some(folder) => folder.to_owned(),
        None => deb::build()?,
    };
    let (out, version) = (crate::root().join("target/rpm"), env!("CARGO_PKG_VERSION"));
    let tree = out.join("tree");
    let _ = fs::remove_dir_all(&tree);
    deb::stage(&programs, &tree)?;
    let package = out.join(format!("lasthop-{version}-1.x86_64.rpm"));
    build(&tree, version, &package).map_err(|e| format!("{}: {e}", package.display()))?;
    let package = package.canonicalize().map_err(|e| format!("{}: {e}", package.display()))?;
    println!("{}", package.display());
    Ok(())
}

fn build(tree: &Path, version: &str, package: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    walk(tree, &mut files)?;
    let mut builder =
        PackageBuilder::new("lasthop", version, "Apache-2.0", "x86_64", "Last-hop switch for virtual machines");
    builder
        .using_config(BuildConfig::v4().compression(CompressionType::Gzip))
        .release("1")
        .description(
            "Carries packets between the VMs of one host, and between them and the network,\nfor any virtio guest whose machine speaks vhost-user.",
        )
        .requires(Dependency::any(format!("libc.so.6({})(64bit)", newest_libc(&files)?)))
        .requires(Dependency::any("libgcc_s.so.1()(64bit)"))
        .requires(Dependency::any("systemd"))
        .requires(Dependency::script_post("/bin/sh"))
        .suggests(Dependency::any("openvswitch"))
        .suggests(Dependency::any("tcpdump"));
    for (hook, text) in [
        (PackageBuilder::post_install_script as fn(&mut _, Scriptlet) -> &mut _, AFTER),
        (PackageBuilder::pre_uninstall_script, BEFORE_REMOVAL),
        (PackageBuilder::post_uninstall_script, AFTER_REMOVAL),
        (PackageBuilder::post_trans_script, AFTER_ALL),
    ] {
        let text = text.replace("UNITS", UNITS).replace("REPLACE\n", deb::REPLACE);
        hook(&mut builder, Scriptlet::new(text).prog(vec!["/bin/sh"]));
    }
    for file in &files {
        let Some(path) = path_of(file.strip_prefix(tree)?) else { continue };
        let options = FileOptions::new(format!("/{path}"));
        let mode = fs::metadata(file)?.permissions().mode() & 0o7777;
        let options = options.permissions(u16::try_from(mode)?).user("root").group("root");
        let options = match &path[..] {
            "etc/lasthop.toml" => options.config().noreplace(),
            path if path.starts_with("usr/share/licenses/") => options.license(),
            path if path.starts_with("usr/share/doc/") || path.starts_with("usr/share/man/") => options.doc(),
            _ => options,
        };
        builder.with_file(file, options)?;
    }
    builder.build()?.write_file(package)?;
    Ok(())
}

/// Where a file goes.
fn path_of(path: &Path) -> Option<String> {
    let path = path.to_string_lossy().into_owned();
    match MOVED.iter().find(|(from, _)| path.starts_with(from)) {
        Some((from, to)) => to.map(|to| path.replacen(from, to, 1)),
        None => Some(path),
    }
}

/// All files of a folder, by name.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() { walk(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

/// The newest version of the C library that one of these programs asks for, such as `GLIBC_2.34`: their dynamic symbols name it.
fn newest_libc(files: &[PathBuf]) -> std::io::Result<String> {
    const NAME: &[u8] = b"GLIBC_2.";
    let mut newest = 0;
    for file in files {
        let bytes = fs::read(file)?;
        for at in bytes.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME).map(|(at, _)| at) {
            let digits: String = bytes[at + NAME.len()..]
                .iter()
                .map(|byte| char::from(*byte))
                .take_while(char::is_ascii_digit)
                .collect();
            newest = newest.max(digits.parse().unwrap_or(0));
        }
    }
    Ok(format!("GLIBC_2.{newest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_rpms_have_them() {
        let path = |path: &str| path_of(Path::new(path));
        assert_eq!(path("usr/bin/lasthop").as_deref(), Some("usr/bin/lasthop"));
        assert_eq!(
            path("usr/share/zsh/vendor-completions/_lasthop").as_deref(),
            Some("usr/share/zsh/site-functions/_lasthop")
        );
        assert_eq!(path("etc/apparmor.d/lasthop"), None);
    }
}
