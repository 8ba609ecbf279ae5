//! What shells complete command lines with. `lasthop completions SHELL` prints a function that has the shell ask this program at each Tab: it knows
//! the command line, and the names of the instance that the line is for.

use crate::client::Instance;
use crate::list::all_ports;
use clap_complete::env::Shells;
use clap_complete::{ArgValueCandidates, ArgValueCompleter, CompleteEnv, CompletionCandidate, Shell};
use lasthop_api::{Port, SwitchProxy};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// By this variable of the environment a shell asks.
const VARIABLE: &str = "LASTHOP_COMPLETE";
/// Whoever has pressed Tab waits no longer for a lasthop that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers the shell, and ends, if it is one that asks.
pub fn answer(command: impl Fn() -> clap::Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// What has a shell ask.
pub fn function(shell: Shell) -> String {
    let mut text = Vec::new();
    if let Some(asks) = Shells::builtins().completer(&shell.to_string()) {
        // Nothing that is written to memory fails.
        let _ = asks.write_registration(VARIABLE, "lasthop", "lasthop", "lasthop", &mut text);
    }
    if shell == Shell::Zsh {
        // Zsh reads it as a function of this name at the first Tab, which is to be answered as well.
        text.extend(b"[[ $funcstack[1] != _lasthop ]] || _clap_dynamic_completer_lasthop \"$@\"\n");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Names of all ports, and of uplinks.
pub fn ports() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(|_| true))
}

/// Names of guests' ports.
pub fn guests() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(|port| !port.uplink))
}

/// Names of uplinks.
pub fn uplinks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(|port| port.uplink))
}

/// Names of all ports, several of them after each other with commas between, or this word for all of them.
pub fn lists_of_ports(all: &'static str) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| after_commas(current, candidates(|_| true), all))
}

/// Names of mirrors.
pub fn mirrors() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = ask(|instance| Some(instance.ask(async |c| c.mirror_list().await).ok()?.mirrors));
        list.unwrap_or_default().into_iter().map(|mirror| CompletionCandidate::new(mirror.name)).collect()
    })
}

fn candidates(wanted: impl Fn(&Port) -> bool) -> Vec<CompletionCandidate> {
    let ports = ask(|instance| all_ports(instance).ok()).unwrap_or_default();
    let wanted = ports.into_iter().filter(wanted);
    wanted.map(|port| CompletionCandidate::new(port.name).help(Some(port.state.into()))).collect()
}

/// What the last word of such a list may be. A name that is there already does not come twice.
fn after_commas(current: &OsStr, names: Vec<CompletionCandidate>, all: &'static str) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let begins = |one: &CompletionCandidate, text: &str| one.get_value().to_string_lossy().starts_with(text);
    let Some((before, last)) = current.rsplit_once(',') else {
        let names = names.into_iter().chain([CompletionCandidate::new(all)]);
        return names.filter(|one| begins(one, current)).collect();
    };
    let taken = |one: &CompletionCandidate| before.split(',').any(|word| one.get_value() == word);
    let names = names.into_iter().filter(|one| begins(one, last) && !taken(one));
    names.map(|one| one.add_prefix(format!("{before},"))).collect()
}

/// Asks the instance that the command line is for. Nothing if there is none, if it may not be asked, or if it does not answer soon: that is no
/// place for messages.
fn ask<T: Send + 'static>(question: impl FnOnce(&mut Instance) -> Option<T> + Send + 'static) -> Option<T> {
    let run_dir = run_dir(std::env::args_os());
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = answer.send(Instance::connect(&run_dir).ok().and_then(|mut instance| question(&mut instance)));
    });
    answered.recv_timeout(PATIENCE).ok()?
}

/// That of the words behind `--`, which are the command line.
fn run_dir(arguments: impl Iterator<Item = OsString>) -> PathBuf {
    let mut words = arguments.skip_while(|word| word != "--").skip(1);
    let mut dir = PathBuf::from("/run/lasthop");
    while let Some(word) = words.next() {
        if word == "--run-dir" {
            dir = words.next().map_or(dir, PathBuf::from);
        } else if let Some(value) = word.to_str().and_then(|word| word.strip_prefix("--run-dir=")) {
            dir = value.into();
        }
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_which_instance_is_asked() {
        let of = |line: &str| run_dir(line.split(' ').map(Into::into));
        assert_eq!(of("lasthop -- lasthop show "), PathBuf::from("/run/lasthop"));
        for line in ["--run-dir /x show ", "show --run-dir=/x "] {
            assert_eq!(of(&format!("lasthop -- lasthop {line}")), PathBuf::from("/x"), "{line}");
        }
        assert_eq!(of("lasthop --run-dir /y -- lasthop show --run-dir"), PathBuf::from("/run/lasthop"));
    }

    #[test]
    fn a_list_goes_on_behind_its_last_comma() {
        let of = |current: &str| {
            let names = ["vm1", "vm2", "net"].map(CompletionCandidate::new).into();
            let found = after_commas(OsStr::new(current), names, "any");
            let mut found: Vec<_> = found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect();
            found.sort();
            found
        };
        assert_eq!(of(""), ["any", "net", "vm1", "vm2"]);
        assert_eq!(of("a"), ["any"]);
        assert_eq!(of("vm1,"), ["vm1,net", "vm1,vm2"]);
        assert_eq!(of("vm1,v"), ["vm1,vm2"]);
        assert_eq!(of("vm1,net,a"), [""; 0]);
    }

    #[test]
    fn each_shell_gets_a_function() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let text = function(shell);
            assert!(text.contains(VARIABLE) && text.contains("lasthop"), "{shell}: {text}");
        }
    }
}
