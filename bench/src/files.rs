//! What a run leaves on disk. Everything is made before the first file is touched, and each file is replaced as a whole: what
//! lies there is of one run.

use crate::paper;
use crate::plot;
use crate::results::Results;
use lasthop_harness::stop::{Outcome, failed};
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Files to be written.
#[derive(Default)]
pub struct Files(Vec<(PathBuf, String)>);

impl Files {
    /// One more.
    pub fn add(&mut self, file: &Path, text: String) {
        self.0.push((file.to_owned(), text));
    }

    /// `compare.json` in a directory, a drawing of each scenario in which something was measured, and the papers' figures, as
    /// drawings and in `papers.md`.
    pub fn add_results(&mut self, results: &Results, dir: &Path) -> Outcome<()> {
        for scenario in results.scenarios.iter().filter(|s| s.measured().next().is_some()) {
            let file = dir.join(format!("{}.svg", scenario.name));
            let text = plot::draw(scenario).map_err(|e| failed(format!("cannot draw {}: {e}", file.display())))?;
            self.add(&file, text);
        }
        let drawn = paper::drawings(results).map_err(|e| failed(format!("cannot draw a paper's figure: {e}")))?;
        drawn.into_iter().for_each(|(name, text)| self.add(&dir.join(name), text));
        if let Some(text) = paper::render(results) {
            self.add(&dir.join("papers.md"), text);
        }
        let json = serde_json::to_string_pretty(results).map_err(failed)?;
        self.add(&dir.join("compare.json"), json + "\n");
        Ok(())
    }

    /// Puts them where they belong.
    pub fn replace(&self) -> Outcome<()> {
        for (file, text) in &self.0 {
            replace(file, text).map_err(|e| failed(format!("cannot write {}: {e}", file.display())))?;
        }
        match &self.0[..] {
            [] => {}
            [(file, _)] => eprintln!("written: {}", file.display()),
            [.., (last, _)] => eprintln!("written: {} files, {} the last", self.0.len(), last.display()),
        }
        Ok(())
    }
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    // As any new file would have it, less what the umask takes.
    let mode = fs::metadata(file).map_or(Permissions::from_mode(0o666), |m| m.permissions());
    let mut new = tempfile::Builder::new().prefix(".lasthop-bench-").permissions(mode).tempfile_in(dir)?;
    new.write_all(text.as_bytes())?;
    new.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages show drawings that are there.
    #[test]
    fn every_drawing_of_the_documents_is_there() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let mut shown = 0;
        let pages = fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().path());
        for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
            let text = fs::read_to_string(&page).unwrap();
            let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            for drawing in links.filter(|link| link.ends_with(".svg")) {
                assert!(docs.join(drawing).exists(), "{} shows {drawing}, which is not there", page.display());
                shown += 1;
            }
        }
        assert!(shown > 0);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("page.md"), "old").unwrap();
        let old = fs::File::open(at("page.md")).unwrap();
        files.add(&at("page.md"), "new".into());
        files.add(&at("page/compare.json"), "{}".into());
        files.replace().unwrap();
        assert_eq!(fs::read_to_string(at("page.md")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("page/compare.json")).unwrap(), "{}");
        assert_eq!(io::read_to_string(old).unwrap(), "old", "who had it open has the old one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }
}
