use super::*;
use tokio::net::UnixStream;
use zlink::connection::socket;

/// Four of them, each reading a little every 29 s, had all the room for long lists for good.
#[tokio::test(start_paused = true)]
async fn a_long_list_that_is_read_now_and_then_ends() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let client = Clients::new(Arc::new(lasthop_sys::Beat::new())).admit(1, false);
    client.list_until.set(Some(tokio::time::Instant::now() + LIST_LIMIT));
    let (_, mut write) = socket::Socket::split(Bounded { socket: ours, client, aside: Aside::new("clients") });
    let tells =
        async { while socket::WriteHalf::write(&mut write, &[0; 65536], &[] as &[OwnedFd], None).await.is_ok() {} };
    let reads = async {
        for _ in 0..100 {
            tokio::time::sleep(READ_LIMIT - Duration::from_secs(1)).await;
            let _ = theirs.try_read(&mut [0; 300_000]);
        }
    };
    tokio::select! {
        () = tells => {}
        () = reads => panic!("it goes on for ever"),
    }
}

/// One that always has something to say had the thread for itself.
#[tokio::test]
async fn a_client_that_never_stops_talking_lets_others_go_first() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.writable().await.unwrap();
    assert_eq!(theirs.try_write(&[b'x'; 5000]).unwrap(), 5000);
    ours.readable().await.unwrap();
    let client = Clients::new(Arc::new(lasthop_sys::Beat::new())).admit(1, false);
    let (mut read, _write) = socket::Socket::split(Bounded { socket: ours, client, aside: Aside::new("clients") });
    let reads = async {
        for _ in 0..5000 {
            socket::ReadHalf::read(&mut read, &mut [0]).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        () = reads => panic!("all of it was read first"),
        () = std::future::ready(()) => {}
    }
}

#[test]
fn lists_come_in_pages() {
    let list = |n, more| -> Vec<(usize, Option<bool>)> {
        let pages = pages(Ok((0..n).collect::<Vec<_>>()), more, 3, |items, total| (items, total));
        let all: Vec<_> = futures_util::FutureExt::now_or_never(futures_util::StreamExt::collect(pages)).unwrap();
        all.into_iter()
            .map(|r: Result<Reply<(Vec<usize>, u64)>, _>| {
                let r = r.unwrap();
                assert_eq!(r.parameters().unwrap().1, n as u64);
                (r.parameters().unwrap().0.len(), r.continues())
            })
            .collect()
    };
    assert_eq!(list(0, true), [(0, Some(false))]);
    assert_eq!(list(3, true), [(3, Some(false))]);
    assert_eq!(list(7, true), [(3, Some(true)), (3, Some(true)), (1, Some(false))]);
    assert_eq!(list(7, false), [(7, Some(false))]);
}

/// A call for a long list took as long as all of its lines take to be written.
#[test]
fn a_page_is_written_when_it_is_told() {
    let made = Rc::new(std::cell::Cell::new(0));
    let count = made.clone();
    let lines = Lines::new(1000, (0..1000).inspect(move |_| count.set(count.get() + 1)));
    let mut pages = pages(Ok(lines), true, 100, |items, _| items);
    assert_eq!(made.get(), 0);
    for n in 1..=10 {
        let page = futures_util::FutureExt::now_or_never(futures_util::StreamExt::next(&mut pages)).unwrap();
        assert_eq!((page.unwrap().unwrap().continues(), made.get()), (Some(n < 10), 100 * n));
    }
}

/// What the interface description has is in the documentation, too.
#[test]
fn methods_and_errors_are_documented() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (described, docs) = (text("org.lasthop.Switch.varlink"), text("../../docs/commands.md"));
    let names = described.lines().filter_map(|line| {
        let name = line.strip_prefix("method ").or_else(|| line.strip_prefix("error "))?;
        name.split(['(', ' ']).next()
    });
    let names: Vec<_> = names.collect();
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<_> = names.into_iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/commands.md lacks {missing:?}");
}
