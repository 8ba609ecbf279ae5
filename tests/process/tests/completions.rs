//! Completions, by a real bash: names of the instance that a command line is for.

use lasthop_tests_process::{Lasthop, PATIENCE, Port, Terminal, binary, proc, scratch, wait_for};
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

struct Site {
    lasthop: Lasthop,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(ports: &[&str]) -> Self {
        let dir = scratch();
        let ports: Vec<_> = ports.iter().map(|name| Port::listen(name, dir.path())).collect();
        let lasthop = Lasthop::start(&ports);
        Self { lasthop, _dir: dir }
    }

    /// What bash has for the last of these words, `RUN` standing for the run directory; without options, which any word may be.
    fn of(&self, line: &str) -> Vec<String> {
        let run_dir = self.lasthop.run_dir().display().to_string();
        let words: Vec<_> = line.split(' ').map(|word| word.replace("RUN", &run_dir)).collect();
        let script = "source <(lasthop completions bash)\n\
            COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1)) COMP_TYPE=9\n\
            _clap_complete_lasthop lasthop \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"\n\
            printf '%s\\n' \"${COMPREPLY[@]}\"";
        let out = bash().args(["-c", script, "bash"]).args(words).output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().filter(|word| !word.starts_with('-') && !word.is_empty()).map(str::to_owned).collect()
    }
}

/// That finds `lasthop` like anybody.
fn bash() -> Command {
    let programs = binary("lasthop").parent().unwrap().display().to_string();
    let mut command = Command::new("bash");
    command.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()));
    command
}

#[test]
fn names_are_those_of_the_instance_that_the_line_is_for() {
    let site = Site::new(&["web1", "web2"]);
    site.lasthop.command(&["mirror", "add", "copies", "--from", "web1", "--to", "web2"]);
    assert_eq!(site.of("lasthop show --run-dir RUN "), ["web1", "web2"]);
    assert_eq!(site.of("lasthop port del --run-dir RUN web2"), ["web2"]);
    assert_eq!(site.of("lasthop port set --run-dir=RUN w"), ["web1", "web2"]);
    assert_eq!(site.of("lasthop uplink del --run-dir RUN "), [""; 0]);
    assert_eq!(site.of("lasthop mirror del --run-dir RUN c"), ["copies"]);
    assert_eq!(site.of("lasthop acl load --run-dir RUN --port w"), ["web1", "web2"]);
    assert_eq!(site.of("lasthop capture --run-dir RUN "), ["web1", "web2", "any"]);
    assert_eq!(site.of("lasthop capture --run-dir RUN web1,"), ["web1,web2"]);
    assert_eq!(site.of("lasthop po"), ["port"], "what needs no instance");
    // Whoever is gone, or hangs, is no place for messages.
    assert_eq!(site.of("lasthop show --run-dir RUN/none "), [""; 0]);
    let hanging = [site.lasthop.pid(), site.lasthop.control()];
    hanging.into_iter().for_each(|pid| proc::signal(pid, Signal::STOP));
    let before = Instant::now();
    assert_eq!(site.of("lasthop show --run-dir RUN "), [""; 0]);
    assert!(before.elapsed() < Duration::from_secs(8), "{:?}", before.elapsed());
    hanging.into_iter().for_each(|pid| proc::signal(pid, Signal::CONT));
}

#[test]
fn tab_completes_in_an_interactive_bash() {
    let site = Site::new(&["web1", "other"]);
    let mut terminal = Terminal::start(bash().args(["--norc", "--noprofile", "-i"]).env("PS1", "ready> "));
    let until = |terminal: &Terminal, what: &str, wanted: &str| {
        wait_for(what, PATIENCE, || terminal.seen().contains(wanted));
    };
    until(&terminal, "a prompt", "ready> ");
    terminal.types("source <(lasthop completions bash); echo sour''ced\r");
    until(&terminal, "it to be read", "sourced");
    terminal.types(&format!("lasthop show --run-dir {} w\t--json\r", site.lasthop.run_dir().display()));
    until(&terminal, "the port to be shown", "\"name\": \"web1\"");
    terminal.types("exit\r");
    assert!(terminal.succeeds());
}
