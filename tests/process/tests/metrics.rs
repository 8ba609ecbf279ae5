//! `lasthop metrics`: what is counted, as Prometheus reads it, and scrapers that mean no good.

use lasthop_tests_process::{Exporter, PATIENCE, Pair, Prometheus, mac, numbered, scratch, wait_for};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

struct Site(Pair);

impl Site {
    /// Two guests, of which the first has sent 8 packets and got one.
    fn new() -> Self {
        let mut pair = Pair::new();
        let [a, b] = &mut pair.guests;
        a.greet(b, 1);
        for n in 0..7 {
            let frame = numbered(mac(1), mac(2), 100 + n, 200);
            a.send(&frame);
            b.expect(&frame);
        }
        Self(pair)
    }

    fn listen(&self, at: &str) -> Exporter {
        Exporter::start(None, &self.0.lasthop.run_dir(), at)
    }
}

fn curl(words: &[&str]) -> String {
    let output =
        Command::new("curl").args(["--silent", "--show-error", "--max-time", "30"]).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number of a series.
fn number(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

#[test]
fn a_scraper_reads_what_stats_shows() {
    let site = Site::new();
    let (tcp, path) = (site.listen("127.0.0.1:0"), site.0.dir.path().join("metrics.sock"));
    let unix = site.listen(&format!("unix:{}", path.display()));
    assert_eq!(unix.at, path.display().to_string());
    let stats: Value = serde_json::from_str(&site.0.lasthop.command(&["stats", "--json"])).unwrap();
    let port = |name: &str| stats["ports"].as_array().unwrap().iter().find(|p| p["name"] == name).unwrap().clone();
    let told = [
        curl(&[&tcp.at]),
        curl(&["--unix-socket", path.to_str().unwrap(), "http://lasthop/metrics"]),
        site.0.lasthop.command(&["metrics"]),
    ];
    for text in &told {
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert_eq!(number(text, "lasthop_up"), 1.0);
        for name in ["a", "b"] {
            assert_eq!(number(text, &format!("lasthop_port_up{{port=\"{name}\"}}")), 1.0);
            for way in ["from_guest", "to_guest"] {
                for unit in ["packets", "bytes"] {
                    let series = format!("lasthop_port_{unit}_total{{port=\"{name}\",direction=\"{way}\"}}");
                    assert_eq!(number(text, &series), port(name)[way][unit].as_f64().unwrap(), "{series}");
                }
            }
        }
        assert_eq!(number(text, "lasthop_port_packets_total{port=\"a\",direction=\"from_guest\"}"), 8.0);
        assert_eq!(number(text, "lasthop_restarts_total{process=\"switch\"}"), 0.0);
    }
    // The switch dies: its counters begin anew, and that is counted.
    site.0.lasthop.kill("lasthop-switch");
    wait_for("a restart to be told", PATIENCE, || {
        number(&curl(&[&tcp.at]), "lasthop_restarts_total{process=\"switch\"}") == 1.0
    });
}

#[test]
fn whoever_asks_for_something_else_or_does_not_ask_keeps_nobody_waiting() {
    let site = Site::new();
    let exporter = site.listen("127.0.0.1:0");
    let address = exporter.address();
    let status = |words: &[&str]| curl(&[&["--output", "/dev/null", "--write-out", "%{http_code}"], words].concat());
    let base = format!("http://{address}");
    assert_eq!(status(&[&format!("{base}/secret")]), "404");
    assert_eq!(status(&["--data", "x=1", &exporter.at]), "405");
    assert_eq!(status(&["--header", &format!("X-Long: {}", "x".repeat(40_000)), &exporter.at]), "431");
    // More than may be served at a time, that say nothing, or nothing to the end.
    let silent: Vec<_> = (0..80)
        .map(|n| {
            let mut stream = TcpStream::connect(address).unwrap();
            if n % 2 == 0 {
                stream.write_all(b"GET /metrics HTT").unwrap();
            }
            stream
        })
        .collect();
    let before = Instant::now();
    assert_eq!(number(&curl(&[&exporter.at]), "lasthop_up"), 1.0);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
    for mut stream in silent {
        // Each is told that it was too slow, or nothing.
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Without an instance there is an answer, which says so.
    drop(site.0.lasthop);
    wait_for("the end to be told", PATIENCE, || number(&curl(&[&exporter.at]), "lasthop_up") == 0.0);
}

/// Three times as many connections as there are places kept a scraper waiting for twice as long as a request may take to come, 10 seconds.
#[test]
fn silent_connections_keep_no_scraper_out() {
    let site = Site::new();
    let exporter = site.listen("127.0.0.1:0");
    let silent: Vec<_> = (0..190).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
    assert_eq!(number(&curl(&["--max-time", "8", &exporter.at]), "lasthop_up"), 1.0);
    drop(silent);
}

/// An instance that does not answer is asked once, however many ask and break off.
#[test]
fn those_that_break_off_leave_no_questions_behind() {
    let dir = scratch();
    let instance = UnixListener::bind(dir.path().join("api.sock")).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((stream, _)) = instance.accept() {
            open.push(stream);
            count.fetch_add(1, Relaxed);
        }
    });
    let exporter = Exporter::start(None, dir.path(), "127.0.0.1:0");
    for n in 0..30 {
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        if n == 0 {
            wait_for("the instance to be asked", PATIENCE, || asked.load(Relaxed) > 0);
        }
        drop(stream);
        // What came before has been read.
        let status =
            ["--output", "/dev/null", "--write-out", "%{http_code}", &format!("http://{}/", exporter.address())];
        assert_eq!(curl(&status), "404");
    }
    // A question is given up after 15 seconds, and then comes another.
    let asked = asked.load(Relaxed);
    assert!(asked < 4, "{asked} questions at a time");
}

#[test]
fn what_cannot_be_listened_at_is_said() {
    let site = Site::new();
    let exporter = site.listen("127.0.0.1:0");
    for (at, says) in [
        (exporter.address(), "choose another address or port with --listen"),
        ("9477", "\"9477\" is no address and port; write one such as 127.0.0.1:9477"),
        ("unix:", "the path is missing"),
        ("unix:/nowhere/m.sock", "/nowhere/m.sock: "),
    ] {
        let output = site.0.lasthop.try_command(&["metrics", "--listen", at]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{at}: {said}");
    }
}

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// All queries of the dashboard.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(docs().join("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Debian's Prometheus takes the figures, and each query of the dashboard means something to it.
#[test]
fn prometheus_has_an_answer_to_each_query_of_the_dashboard() {
    let site = Site::new();
    let exporter = site.listen("127.0.0.1:0");
    // A port that is free now; whoever takes it meanwhile fails the test, and nothing else.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let prometheus = Prometheus::start(None, site.0.dir.path(), exporter.address(), &free, &docs());
    let result = |query: &str| prometheus.result(query);
    let counted = "lasthop_port_packets_total{port=\"a\",direction=\"from_guest\"}";
    wait_for("Prometheus to have the figures", Duration::from_secs(60), || {
        result(counted).is_some_and(|r| r[0]["value"][1] == "8")
    });
    // What a browser makes of it is in the longer suite.
    let page = curl(&["--fail", &format!("http://{free}/consoles/prometheus-console.html")]);
    assert!(page.contains("\"expr\": \"sum(lasthop_port_up)\"") && page.trim_end().ends_with("</html>"), "{page}");
    let queries = queries();
    assert!(queries.len() > 8, "{queries:?}");
    for query in queries {
        let query = query.replace("$__rate_interval", "1m").replace("$port", ".*");
        // A rate takes two scrapes; what there is nothing of, such as drops, still has to be a query.
        let may_be_none = query.contains("dropped") || query.contains("interface") || query.contains("connections");
        wait_for(&format!("an answer to {query}"), Duration::from_secs(30), || {
            let answer = result(&query);
            may_be_none && answer.is_some() || answer.is_some_and(|r| r.as_array().is_some_and(|r| !r.is_empty()))
        });
    }
}
