//! `lasthop top`: a table each interval without a terminal, and a screen on a pseudo-terminal.

use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, Terminal, binary, mac, numbered, scratch, wait_for,
};
use std::io::Read;
use std::process::{Command, Stdio};

struct Site {
    lasthop: Lasthop,
    a: Guest,
    b: Guest,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = scratch();
        let lasthop = Lasthop::start(&[Port::listen("a", dir.path()), Port::listen("b", dir.path())]);
        let guest = |name: &str, n| Guest::connect(&dir.path().join(name), mac(n), Options::default());
        let (mut a, mut b) = (guest("a.sock", 1), guest("b.sock", 2));
        ["a", "b"].into_iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        a.greet(&mut b, 1);
        Self { lasthop, a, b, _dir: dir }
    }

    fn send(&mut self, number: u32) {
        let frame = numbered(mac(1), mac(2), number, 1000);
        self.a.send(&frame);
        self.b.expect(&frame);
    }

    fn top(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("lasthop"));
        command.arg("top").args(words).arg("--run-dir").arg(self.lasthop.run_dir()).env("TERM", "xterm");
        command
    }
}

#[test]
fn without_a_terminal_there_is_a_table_each_interval() {
    let mut site = Site::new();
    let mut command = site.top(&["-n", "2", "-d", "1"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut number = 10;
    while child.try_wait().unwrap().is_none() {
        site.send(number);
        number += 1;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let tables: Vec<_> = text.split("\n\n").filter(|table| !table.is_empty()).collect();
    assert_eq!(tables.len(), 2, "{text}");
    for table in tables {
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("PORT") && lines[3].starts_with("CPU%: "), "{table}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        // From a and to b, at the same rate.
        let (a, b) = (words(lines[1]), words(lines[2]));
        assert_eq!((&a[..2], &b[..2]), (&["a", "up"].map(str::to_owned)[..], &["b", "up"].map(str::to_owned)[..]));
        assert!(a[2].parse::<f64>().unwrap() > 1.0 && a[4..6] == ["-", "0"] && a[7] == "0", "{table}");
        assert!(b[5].parse::<f64>().unwrap() > 1.0 && b[2] == "0", "{table}");
    }
}

#[test]
fn on_a_terminal_keys_sort_and_open_a_port() {
    let mut site = Site::new();
    let mut terminal = Terminal::start(&mut site.top(&["-d", "1"]));
    let mut number = 10;
    let mut until = |terminal: &Terminal, what: &str, wanted: &str| {
        wait_for(what, PATIENCE, || {
            site.send(number);
            number += 1;
            terminal.seen().contains(wanted)
        });
    };
    until(&terminal, "the headings", "FROM/s");
    until(&terminal, "a sparkline", "█");
    // Cells that stay blank are not written: a word is the most that comes in one piece.
    until(&terminal, "the keys", "choose");
    // By name a is first; opened it shows what `lasthop show a` does.
    terminal.types("n\r");
    until(&terminal, "the open port", "a.sock");
    terminal.types("q");
    assert!(terminal.succeeds());
    // The screen that was there before is back.
    wait_for("the other screen", PATIENCE, || terminal.seen().contains("\u{1b}[?1049l"));
}
