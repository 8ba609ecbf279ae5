//! What one front-end may take up of what all share: address space, mappings, the log. Beyond a bound it is refused, with a
//! reason that says what to do; nobody else notices.

use lasthop_guestmem::RegionSpec;
use lasthop_tests_process::{
    Arena, Bystanders, DeadMount, Guest, Lasthop, Options, PATIENCE, Port, connect, mac, numbered, scratch, wait_for,
};
use lasthop_text::MacAddr;
use lasthop_vhostuser::message::{MAX_TABLE, flag};
use lasthop_vhostuser::{Features, Frontend, Request};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A connection with REPLY_ACK negotiated: refusals are answers.
fn negotiated(path: &Path) -> Frontend {
    let mut front = connect(path);
    front.set_owner().unwrap();
    front.features().unwrap();
    let protocol = front.protocol_features().unwrap();
    front.set_protocol_features(protocol).unwrap();
    front.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES | Features::MRG_RXBUF).unwrap();
    front
}

fn region(guest_addr: u64, size: u64) -> RegionSpec {
    RegionSpec { guest_addr, user_addr: guest_addr, size, mmap_offset: 0 }
}

/// A file of any length and no content.
fn sparse(size: u64) -> OwnedFd {
    lasthop_sys::memfd("hostile", size).unwrap()
}

/// F11: 79 sparse files of 1.6 TiB would be all the address space that there is.
#[test]
fn f11_one_front_end_does_not_take_the_address_space() {
    const SIZE: u64 = 16 << 40;
    let dir = scratch();
    let ports = ["x", "y", "w", "a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("a"), &path("b"), [mac(0xa), mac(0xb)]);
    let front = negotiated(&path("x"));
    let fd = sparse(SIZE / 10);
    let taken = (0..79).take_while(|i| front.add_region(region(i * SIZE, SIZE / 10), fd.as_fd()).is_ok()).count();
    // Guests that come now find room.
    let mut late = [("w", 0x77), ("y", 0x66)].map(|(name, n)| Guest::connect(&path(name), mac(n), Options::default()));
    let [one, other] = &mut late;
    one.greet(other, 1);
    bystanders.still_exchange();
    assert_eq!(taken, 0, "a file of 1.6 TiB is more than this host's memory");
    let error = lasthop.port("x")["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("ADD_MEM_REG") && error.contains("--max-guest-memory"), "{error}");
    // In one table, and in many small pieces, it is the same.
    let table: Vec<_> = (0..MAX_TABLE as u64).map(|i| (region(i * SIZE, SIZE / 10), fd.as_fd())).collect();
    assert!(front.set_mem_table(&table).is_err());
    let quarter = lasthop.port("w")["memory_bytes"].as_u64().unwrap_or(0).max(host_memory() / 4);
    let small = sparse(quarter);
    let piece = |i: u64| region(i * (quarter + 4096).next_multiple_of(1 << 30), quarter);
    let taken = (0..600).take_while(|i| front.add_region(piece(*i), small.as_fd()).is_ok()).count();
    assert!((1..=4).contains(&taken), "{taken} quarters of this host's memory");
    wait_for("the log to say so", PATIENCE, || lasthop.log().contains("--max-guest-memory"));
    one.greet(other, 2);
    bystanders.still_exchange();
}

/// Bytes, swap included.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram + info.totalswap) * u64::from(info.mem_unit)
}

/// F11: what a port may map can be said, and is said when it is refused.
#[test]
fn f11_the_bound_can_be_set() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("x", dir.path())], &["--max-guest-memory", "64M"]);
    let front = negotiated(&dir.path().join("x.sock"));
    let fd = sparse(65 << 20);
    front.set_mem_table(&[(region(0, 64 << 20), fd.as_fd())]).unwrap();
    assert!(front.set_mem_table(&[(region(0, 65 << 20), fd.as_fd())]).is_err());
    let error = lasthop.port("x")["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("65 MiB") && error.contains("64 MiB"), "{error}");
    assert_eq!(lasthop.port("x")["memory_bytes"], 64 << 20, "the table before stands");
}

/// F11: tables of memory one after the other, while what they replace is not unmapped: two are mapped at most, and the rest waits. An
/// honest front-end may change its memory as often as it likes.
#[test]
fn f11_memory_that_waits_to_be_unmapped_counts() {
    let Some(dead) = DeadMount::new() else {
        println!("no file system in user space can be mounted here: not tested");
        return;
    };
    let dir = scratch();
    let ports = ["x", "a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--max-guest-memory", "64M"]);
    let switch = lasthop.switch();
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("a"), &path("b"), [mac(0xa), mac(0xb)]);
    let maps = move || std::fs::read_to_string(format!("/proc/{switch}/maps")).unwrap_or_default();
    let mapped = move || maps().lines().filter(|line| line.contains("memfd:hostile")).count();
    let table = |fd: &OwnedFd, front: &Frontend| front.set_mem_table(&[(region(0, 64 << 20), fd.as_fd())]);
    let fd = sparse(64 << 20);
    let front = negotiated(&path("x"));
    (0..2000).for_each(|_| table(&fd, &front).unwrap());
    wait_for("all but the last to be unmapped", PATIENCE, || mapped() == 1);
    // The thread that unmaps is busy, with a file that does not close: another thing of the same port.
    drop(front);
    let (x, (tell, told)) = (path("x"), std::sync::mpsc::channel());
    dead.with_file(move |file| {
        // This thread has descriptors of its own.
        let (front, fd) = (negotiated(&x), sparse(64 << 20));
        // No eventfd, so it is refused: the switch's to close.
        let kick = Request::SetVringKick as u32;
        front.send(kick, flag::VERSION | flag::NEED_REPLY, &[0; 8], &[file]).unwrap();
        let table: Vec<_> = [1u64, 0, 64 << 20, 0, 0].map(u64::to_ne_bytes).concat();
        let mut most = 0;
        // Until the connection is ended.
        while front.send(Request::SetMemTable as u32, flag::VERSION, &table, &[fd.as_fd()]).is_ok() {
            most = most.max(mapped());
        }
        tell.send(most).unwrap();
    });
    let most = told.recv().unwrap();
    assert!((1..=2).contains(&most), "{most} tables mapped at once");
    bystanders.still_exchange();
    let error = lasthop.port("x")["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("do not close"), "{error}");
    assert!(lasthop.log().contains("requests wait"), "{}", lasthop.log());
    assert_eq!(lasthop.switch(), switch);
    drop(dead);
    wait_for("all to be unmapped", PATIENCE, || mapped() == 0);
}

/// F11: the regions of seventeen ports leave room for those of the eighteenth.
#[test]
fn f11_regions_of_many_ports() {
    let dir = scratch();
    let names: Vec<String> = (0..17).map(|n| format!("x{n}")).collect();
    let ports: Vec<Port> =
        names.iter().map(String::as_str).chain(["a", "b", "w"]).map(|n| Port::listen(n, dir.path())).collect();
    let lasthop = Lasthop::start(&ports);
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&socket("a"), &socket("b"), [mac(0xa), mac(0xb)]);
    let fd = sparse(4096);
    let mut held = Vec::new();
    for name in &names {
        let front = negotiated(&socket(name));
        let taken = (0..600).take_while(|i| front.add_region(region(i << 20, 4096), fd.as_fd()).is_ok()).count();
        assert_eq!(taken, 509, "what a front-end may have");
        let error = lasthop.port(name)["last_error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains("509 memory regions"), "{error}");
        held.push(front);
    }
    let mut late = Guest::connect(&socket("w"), mac(0x77), Options::default());
    drop(held.pop());
    wait_for("the port to be free", PATIENCE, || lasthop.port("x16")["memory_bytes"] == 0);
    let mut other = Guest::connect(&socket("x16"), mac(0x66), Options::default());
    other.greet(&mut late, 1);
    bystanders.still_exchange();
}

/// F7: files of many gigabytes and no content are cut off while the switch uses them. The zeros that it then reads instead are not
/// counted as its own memory, of which it may have no more than 8 GiB.
#[test]
fn f7_sparse_files_that_are_cut_off() {
    let dir = scratch();
    let ports = ["x", "y", "z", "a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let switch = lasthop.switch();
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("a"), &path("b"), [mac(0xa), mac(0xb)]);
    let size = (host_memory() / 4 * 3).min(12 << 30);
    let options = Options::net(|n| n.rx_buffer = (size / u64::from(n.size)) as u32);
    let names = ["x", "y", "z"];
    let mut guests = names.map(|name| Guest::connect(&path(name), mac(0x66), options));
    for (name, guest) in names.iter().zip(&mut guests) {
        guest.net.send(0, &[0; 12], &numbered(mac(0x66), MacAddr::BROADCAST, 5, 1500)).unwrap().unwrap();
        guest.net.flush(0);
        // From here on our own memory is gone as well: touch it no more.
        rustix::fs::ftruncate(guest.net.region().1, 0).unwrap();
        guest.net.queues()[1].kick.signal();
        wait_for("the port to be broken", PATIENCE, || lasthop.port(name)["state"] == "broken");
    }
    bystanders.still_exchange();
    assert_eq!(lasthop.switch(), switch, "the process stays");
}

/// F7: a page of a file on a disk, or of one that its owner serves itself, would have to be waited for.
#[test]
fn f7_files_whose_pages_must_be_waited_for() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F7 kinds of files");
    let on_disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    on_disk.set_len(1 << 20).unwrap();
    let front = negotiated(&arena.path());
    assert!(front.set_mem_table(&[(region(0, 1 << 20), on_disk.as_fd())]).is_err());
    assert!(front.add_region(region(0, 1 << 20), on_disk.as_fd()).is_err());
    let error = arena.port()["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("memory-backend-memfd"), "{error}");
    drop(front);
    arena.end(&attack, &["port=x", "SET_MEM_TABLE", "memfd"]);
}

/// L1: nobody reads the log, its pipe is full, and a front-end causes a line with each message.
#[test]
fn l1_nobody_reads_the_log() {
    /// Messages in one connection that are refused, the last of which ends it.
    const REFUSED: usize = 33;
    const CONNECTIONS: usize = 1000;
    let dir = scratch();
    let (reader, writer) = std::io::pipe().unwrap();
    let ports = ["x", "w", "a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_logging(None, &ports, &[], Some(writer.try_clone().unwrap().into()));
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("a"), &path("b"), [mac(0xa), mac(0xb)]);
    bystanders.still_exchange();
    // From here on whoever writes a line sleeps.
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    let switch = lasthop.switch();
    for _ in 0..CONNECTIONS {
        let front = negotiated(&path("x"));
        for _ in 0..REFUSED {
            // A ring's index that no port has.
            let body = [99u32.to_ne_bytes(), 256u32.to_ne_bytes()].concat();
            if front.send(Request::SetVringNum as u32, flag::VERSION | flag::NEED_REPLY, &body, &[]).is_err() {
                break;
            }
        }
        // Closed by the switch once it has read them all.
        while rustix::net::recv(&front, &mut [0u8; 4096], rustix::net::RecvFlags::empty()).is_ok_and(|(_, n)| n > 0) {}
    }
    bystanders.still_exchange();
    // The main thread works: a guest comes, and a question is answered.
    let mut late = Guest::connect(&path("w"), mac(0x77), Options::default());
    let mut other = Guest::connect(&path("x"), mac(0x66), Options::default());
    other.greet(&mut late, 1);
    let error = lasthop.port("x")["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("SET_VRING_NUM"), "{error}");
    assert_eq!(lasthop.switch(), switch);
    // Somebody reads again: the log says that lines were left out, and whose.
    drop(writer);
    let (told, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut refused, mut left_out) = (0u64, 0u64);
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            refused += u64::from(line.contains("SET_VRING_NUM"));
            if let Some((number, _)) = line.split_once(" more lines of this port left out") {
                left_out += number.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            }
            let _ = told.send((refused, left_out));
        }
    });
    // The last of each connection ends it, and how connections end is the supervisor's to say.
    let all = ((REFUSED - 1) * CONNECTIONS) as u64;
    let (mut refused, mut left_out) = (0, 0);
    while refused + left_out < all {
        (refused, left_out) =
            said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{refused} and {left_out} of {all}"));
    }
    assert!(refused < all / 10, "{refused} of {all} lines about one port");
    bystanders.still_exchange();
}
