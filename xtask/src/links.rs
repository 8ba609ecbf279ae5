//! Links between the project's own documents: each leads to a file that is there, and to a heading that is in it. The documents that
//! comments in Rust name lead to files, too.

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

/// The documents that a line of Rust names in its comment, as `docs/….md` from the repository's root.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let comment = line.split_once("//").map_or("", |(_, comment)| comment);
    let words = comment.split(|c: char| !c.is_alphanumeric() && !matches!(c, '/' | '.' | '-' | '_'));
    // The full stop at the end of a sentence is none of the name.
    words.map(|word| word.trim_end_matches('.')).filter(|word| word.starts_with("docs/") && word.ends_with(".md"))
}

/// One sentence for each document that a comment in Rust names and that is not there. `sources`: the text of each file by its path.
pub fn broken_in_comments(sources: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (source, text) in sources {
        for (n, line) in text.lines().enumerate() {
            for name in named(line).filter(|name| !exists(Path::new(name))) {
                found.push(format!("{}:{}: {name} is not there", source.display(), n + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_name_documents_that_are_there() {
        // Written with another folder: this file is looked at, too.
        let source = "//! See DOCS/acl.md and (DOCS/no/such.md, S1).\nlet page = \"DOCS/data.md\"; // as DOCS/gone.md.\n\
                      // `DOCS/interop/vhost-user.rst`, /x/DOCS/y.md and https://DOCS.rs/z are no names of ours.\n";
        let source = source.replace("DOCS", "docs");
        let sources = [("a.rs".into(), source)].into();
        let known = |path: &Path| path == Path::new("docs/acl.md");
        assert_eq!(
            broken_in_comments(&sources, known),
            ["a.rs:1: docs/no/such.md is not there", "a.rs:2: docs/gone.md is not there"]
        );
        assert_eq!(broken_in_comments(&sources, |_| true), [""; 0]);
    }

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
