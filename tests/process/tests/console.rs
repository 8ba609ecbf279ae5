//! `docs/prometheus-console.html`: what a browser shows of it that asks a Prometheus, which asks a lasthop with traffic.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{
    Exporter, Guest, Lasthop, Netns, Options, Port, Prometheus, mac, numbered, scratch, wait_for,
};
use lasthop_text::MacAddr;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

/// `b` answers nobody but by one port.
const GROUP: &str = "stateful\ndefault to-guest deny\npermit to-guest udp to any port 22\n";
/// Where the browser's window ends.
const WINDOW: &str = "--window-size=1280,1010";

/// What is behind the page: two guests, and an interface.
struct Site {
    guests: [Guest; 2],
    lasthop: Lasthop,
    sent: u16,
}

impl Site {
    fn new(netns: &Netns, dir: &Path) -> Self {
        let ports = ["a", "b"].map(|name| Port::listen(name, dir));
        let lasthop = Lasthop::start_in(Some(netns), &ports, &["--uplink", "net=lh0,driver=tap"]);
        lasthop.wait_for_state("net", "up");
        netns.ip("link set lh0 up");
        let mut guests = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default()));
        let [a, b] = &mut guests;
        a.greet(b, 1);
        let file = dir.join("group");
        std::fs::write(&file, GROUP).unwrap();
        lasthop.command(&["acl", "load", &file.display().to_string(), "--port", "b"]);
        Self { guests, lasthop, sent: 0 }
    }

    /// A connection that is let through, a packet that is dropped, one for everybody, and one from `b`.
    fn traffic(&mut self) {
        let [a, b] = &mut self.guests;
        self.sent = self.sent % 200 + 1;
        let udp = |to: u16| {
            let frame = Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
            frame.udp(1000 + self.sent, to).payload([7; 900]).build()
        };
        a.send(&udp(23));
        let through = udp(22);
        a.send(&through);
        b.expect(&through);
        a.send(&numbered(mac(1), MacAddr([0xff; 6]), u32::from(self.sent), 200));
        let back = numbered(mac(2), mac(1), u32::from(self.sent), 300);
        b.send(&back);
        a.expect(&back);
    }
}

/// One panel as it is shown.
#[derive(Debug)]
struct Panel {
    /// What is in it, without a legend.
    text: String,
    /// Its series, by their names in the legend, and their last values.
    legend: BTreeMap<String, String>,
    /// How many of those are drawn.
    lines: usize,
}

/// What stands between two words, behind the first of each.
fn between<'a>(text: &'a str, begins: &'a str, ends: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begins).skip(1).filter_map(move |rest| rest.split_once(ends).map(|(inside, _)| inside))
}

/// Without tags.
fn plain(html: &str) -> String {
    html.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
}

fn panels(page: &str) -> BTreeMap<String, Panel> {
    let panel = |section: &str| {
        let title = between(section, "<h2>", "</h2>").next().expect("a title");
        let legend = between(section, "<span>", "</span>").map(|word| {
            let (name, latest) = word.split_once("<b>").expect("a value");
            (plain(name).trim().to_owned(), plain(latest))
        });
        let legend: BTreeMap<_, _> = legend.collect();
        let lines = between(section, "<polyline ", ">").filter(|line| !line.contains("points=\"\"")).count();
        let text = between(section, "<h2>", "<div class=\"keys\">").next().unwrap_or(section);
        (title.to_owned(), Panel { text: plain(text.split_once("</h2>").map_or(text, |(_, t)| t)), legend, lines })
    };
    between(page, "<section ", "</section>").map(panel).collect()
}

struct Browser<'a> {
    netns: &'a Netns,
    /// Its files.
    dir: PathBuf,
    page: String,
}

impl Browser<'_> {
    fn look(&self, query: &str, words: &[&str]) -> Output {
        let there = std::process::Command::new("chromium").arg("--version").output();
        assert!(there.is_ok_and(|o| o.status.success()), "chromium is missing: `scripts/setup long` installs it");
        let files = format!("--user-data-dir={}", self.dir.display());
        let mut command = self.netns.command("timeout");
        command.args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", &files]);
        command.args(["--virtual-time-budget=8000", WINDOW]).args(words);
        let output = command.arg(format!("{}{query}", self.page)).output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        output
    }

    /// The page as it is once everything has been asked.
    fn shows(&self, query: &str) -> String {
        String::from_utf8(self.look(query, &["--dump-dom"]).stdout).unwrap()
    }
}

/// Titles of the dashboard's panels, and the queries of each.
fn dashboard() -> Vec<(String, Vec<String>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let queries = |panel: &Value| panel["targets"].as_array().unwrap().iter().map(|t| text(&t["expr"])).collect();
    dashboard["panels"].as_array().unwrap().iter().map(|panel| (text(&panel["title"]), queries(panel))).collect()
}

#[test]
#[ignore = "rarely breaks, and takes a browser; `cargo xtask test --long` runs it"]
fn a_browser_shows_a_value_in_each_panel() {
    let (netns, dir) = (Netns::new(), scratch());
    let mut site = Site::new(&netns, dir.path());
    let consoles = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let exporter = Exporter::start(Some(&netns), &site.lasthop.run_dir(), "127.0.0.1:9477");
    let prometheus = Prometheus::start(Some(&netns), dir.path(), exporter.address(), "127.0.0.1:9090", &consoles);
    let page = format!("http://{}/consoles/prometheus-console.html", prometheus.at);
    let browser = Browser { netns: &netns, dir: dir.path().join("browser"), page };
    // What is a rate has to rise while it is watched, and so has something to show.
    let wanted = dashboard();
    let rates = wanted.iter().flat_map(|(_, queries)| queries).filter(|query| query.contains("[$__rate_interval]"));
    let rates: Vec<_> = rates.map(|q| q.replace("$__rate_interval", "4m").replace("$port", ".*")).collect();
    assert!(rates.len() > 8, "{rates:?}");
    let value = |result: &Value| result["value"][1].as_str().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    wait_for("everything to rise", Duration::from_secs(90), || {
        site.traffic();
        let rises = |query: &String| {
            prometheus.result(query).is_some_and(|r| r.as_array().unwrap().iter().any(|r| value(r) > 0.0))
        };
        rates.iter().all(rises)
    });

    let is_drawn = |(title, queries): &(String, Vec<String>)| {
        title == "Connections" || queries.iter().any(|query| query.contains("[$__rate_interval]"))
    };
    // Numbers, which may change while the browser looks.
    let numbers = || -> BTreeMap<String, f64> {
        let number = |query: &String| value(&prometheus.result(query).expect("an answer")[0]);
        wanted.iter().filter(|panel| !is_drawn(panel)).map(|(title, q)| (title.clone(), number(&q[0]))).collect()
    };
    let before = numbers();
    let text = browser.shows("");
    let after = numbers();
    let shown = panels(&text);
    let titles = wanted.iter().map(|(title, _)| title).collect::<BTreeSet<_>>();
    assert_eq!(shown.keys().collect::<BTreeSet<_>>(), titles, "{text}");
    for (title, panel) in &shown {
        if let Some((before, after)) = before.get(title).zip(after.get(title)) {
            let number: f64 = panel.text.parse().unwrap_or_else(|e| panic!("{title}: {e}: {panel:?}"));
            assert!(
                (before.min(*after)..=before.max(*after)).contains(&number),
                "{title}: {before}, {panel:?}, {after}"
            );
        } else {
            let is_none = |value: &String| value.is_empty() || value.split(' ').next() == Some("0");
            assert!(panel.legend.values().any(|value| !is_none(value)), "{title}: {panel:?}");
            assert_eq!(panel.lines, panel.legend.len(), "{title}: {panel:?}");
        }
    }
    let keys = |title: &str| shown[title].legend.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys("Packets from guests"), ["a", "b", "net"]);
    assert_eq!(keys("Dropped packets by reason"), ["a from_guest acl"]);
    assert_eq!(keys("Interfaces"), ["net from_network", "net to_network"]);
    assert!(shown["Answers"].text == "1" && shown["Ports up"].text == "3", "{shown:?}");

    let of_b = panels(&browser.shows("?port=b&last=300&rate=30s"));
    assert_eq!(of_b["Packets to guests"].legend.keys().collect::<Vec<_>>(), ["b"]);
    assert!(browser.shows("?port=(").contains("no answer: "), "what Prometheus says of a port's name");

    // For the documents: `LASTHOP_PICTURE=/tmp/console.png`, and five minutes.
    if let Some(picture) = std::env::var_os("LASTHOP_PICTURE") {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(300) {
            // Busier and quieter in turn.
            let busy = 1.0 + (begin.elapsed().as_secs_f64() / 20.0).sin();
            (0..(20.0 * busy) as u32).for_each(|_| site.traffic());
            std::thread::sleep(Duration::from_millis(100));
        }
        browser.look("?last=300&rate=15s", &[&format!("--screenshot={}", Path::new(&picture).display())]);
    }
}
