//! Programs of this host inside a VM.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Puts these, without what only debuggers want of them, behind the files of the VM image, with the libraries they need.
pub fn initrd(image: &Path, scratch: &Path, programs: &[PathBuf]) -> PathBuf {
    let list = programs.iter().map(|program| format!("'{}'", program.display())).collect::<Vec<_>>().join(" ");
    let script = format!(
        "set -e; cd {scratch}; mkdir -p root/bin root/run root/var/lib; \
         for p in {list}; do cp -L \"$p\" root/bin/; strip root/bin/${{p##*/}} 2>/dev/null || true; \
         ldd \"$p\" | grep -o '/[^ ]*' | while read -r lib; do mkdir -p root$(dirname $lib); cp -Lu $lib root$lib; done; done; \
         (cat {image}/initrd; cd root; find . | cpio -o -H newc --quiet) >initrd; rm -r root",
        scratch = scratch.display(),
        image = image.display()
    );
    let made = Command::new("bash").args(["-c", &script]).output().expect("bash");
    assert!(made.status.success(), "files for a VM: {}", String::from_utf8_lossy(&made.stderr));
    scratch.join("initrd")
}
