//! `lasthop metrics`, and a Prometheus that asks it.

use lasthop_harness::{Netns, binary};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn command(netns: Option<&Netns>, program: &str) -> Command {
    netns.map_or_else(|| Command::new(program), |netns| netns.command(program))
}

/// `lasthop metrics --listen`, until it goes out of scope.
pub struct Exporter {
    child: Child,
    /// What it says it listens at.
    pub at: String,
}

impl Exporter {
    /// In this network namespace; this returns once it listens.
    pub fn start(netns: Option<&Netns>, run_dir: &Path, at: &str) -> Self {
        let mut command = command(netns, &binary("lasthop").display().to_string());
        command.args(["metrics", "--listen", at, "--run-dir"]).arg(run_dir).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.strip_prefix("ready: ").unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        Self { child, at }
    }

    /// Address and port.
    pub fn address(&self) -> &str {
        self.at.strip_prefix("http://").and_then(|at| at.strip_suffix("/metrics")).unwrap()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Prometheus, until it goes out of scope.
pub struct Prometheus<'a> {
    child: Child,
    netns: Option<&'a Netns>,
    /// Address and port where it listens.
    pub at: String,
}

impl<'a> Prometheus<'a> {
    /// That asks `target` each second, listens at `at`, has its files in `dir` and its console's pages in `consoles`.
    pub fn start(netns: Option<&'a Netns>, dir: &Path, target: &str, at: &str, consoles: &Path) -> Self {
        let config = dir.join("prometheus.yml");
        let job = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: lasthop\n  static_configs:\n  - targets: ['{target}']\n"
        );
        std::fs::write(&config, job).unwrap();
        let mut command = command(netns, "prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()));
        command.arg(format!("--web.listen-address={at}"));
        command.arg(format!("--web.console.templates={}", consoles.display()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, netns, at: at.to_owned() }
    }

    /// What it answers to a query; nothing if that means nothing to it, or if it does not answer.
    pub fn result(&self, query: &str) -> Option<Value> {
        let (data, url) = (format!("query={query}"), format!("http://{}/api/v1/query", self.at));
        let words = ["--silent", "--max-time", "10", "--data-urlencode", &data, &url];
        let output = command(self.netns, "curl").args(words).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        (answer["status"] == "success").then(|| answer["data"]["result"].clone())
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
