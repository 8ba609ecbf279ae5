//! Links between the project's own documents: each leads to a file that is there, and to a heading that is in it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The name by which a heading is linked to: lower case, spaces as hyphens, without other signs (GitHub's rule).
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Lines of a document that are not in a code block.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// What the links of a line lead to.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// `a/b/../c` as `a/c`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// One sentence for each link that leads nowhere. `documents`: the text of each by its path; `exists`: of any other path.
pub fn broken(documents: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let headings = |text: &str| prose(text).filter(|l| l.starts_with('#')).map(anchor).collect::<Vec<_>>();
    let anchors: BTreeMap<&Path, Vec<String>> = documents.iter().map(|(p, t)| (p.as_path(), headings(t))).collect();
    let mut found = Vec::new();
    for (document, text) in documents {
        for target in prose(text).flat_map(targets).filter(|t| !t.contains("://") && !t.contains(' ')) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => document.clone(),
                path => plain(&document.parent().unwrap_or(Path::new("")).join(path)),
            };
            let known = anchors.get(file.as_path());
            let good = match known {
                Some(anchors) => heading.is_empty() || anchors.iter().any(|a| a == heading),
                None => exists(&file),
            };
            if !good {
                let what = if known.is_some() { "heading" } else { "file" };
                found.push(format!("{}: ({target}) leads to no {what}", document.display()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let page = "# One thing\n## `code`, and (more)\n[a](other.md#two) [b](#code-and-more) [c](../src/x.rs) [d](https://x/y#z)\n\
                    ```\n[e](nothing.md)\n```\n";
        let documents: BTreeMap<PathBuf, String> =
            [("docs/page.md", page), ("docs/other.md", "# Two\n")].map(|(p, t)| (p.into(), t.into())).into();
        assert_eq!(broken(&documents, |p| p == Path::new("src/x.rs")), [""; 0]);
        let all = broken(&documents, |_| false);
        assert_eq!(all, ["docs/page.md: (../src/x.rs) leads to no file"]);
        let wrong = [("a.md".into(), "[a](b.md#three) [b](c.md)".into()), ("b.md".into(), "# Two".into())].into();
        let all = broken(&wrong, |_| false);
        assert_eq!(all, ["a.md: (b.md#three) leads to no heading", "a.md: (c.md) leads to no file"]);
    }
}
