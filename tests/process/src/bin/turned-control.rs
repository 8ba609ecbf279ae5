//! Started by lasthop in the place of `lasthop-control`. Where the file `orders` lies beside it, it is taken away, and this process does to
//! its rings what the file says. Where there is none, it becomes the program in the folder `real`.

use lasthop_ipc::{Channel, ChannelError};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_sys::{SharedWords, inherited_fd, receive_with_fds};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, send};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Descriptor number of the channel to the supervisor.
const CHANNEL: i32 = 3;
/// What docs/control-rings.md says: words of the memory, heads and lines.
const WORDS: usize = 33_280;
const TO_CONTROL: usize = 16;
const TO_SWITCH: usize = 48;
const LINES: usize = 16_896;

fn main() {
    let mut arguments = std::env::args_os();
    let called = arguments.next().map(PathBuf::from).expect("a name");
    let orders = called.with_file_name("orders");
    let Ok(order) = std::fs::read_to_string(&orders) else {
        let real = called.with_file_name("real").join("lasthop-control");
        panic!("{}", Command::new(real).args(arguments).exec());
    };
    let mut supervisor = Channel::<ControlToSupervisor, SupervisorToControl>::new(
        inherited_fd(CHANNEL).expect("lasthop starts it with a channel"),
    );
    supervisor.send(&ControlToSupervisor::Ready, None).expect("the supervisor listens");
    let socket = rings(&mut supervisor);
    std::fs::remove_file(orders).expect("its folder can be written to");
    let mut came = Vec::new();
    receive_with_fds(&socket, &mut [0], &mut came, RecvFlags::empty()).expect("the memory");
    let memory = SharedWords::map(came.pop().expect("the memory"), WORDS).expect("the memory");
    turn(&order, &memory);
    let _ = send(&socket, &[0], SendFlags::NOSIGNAL);
    loop {
        std::thread::park();
    }
}

fn rings(supervisor: &mut Channel<ControlToSupervisor, SupervisorToControl>) -> OwnedFd {
    loop {
        match supervisor.recv() {
            Ok((SupervisorToControl::DatapathChannel, Some(socket))) => return socket,
            Ok(_) => {}
            Err(ChannelError::WouldBlock) => {
                let _ = poll(&mut [PollFd::new(supervisor, PollFlags::IN)], None);
            }
            Err(e) => panic!("the supervisor: {e}"),
        }
    }
}

fn turn(order: &str, memory: &SharedWords) {
    let publish = |lines: u64| memory[TO_SWITCH].store(lines, Release);
    let mut seed = 1u64;
    let mut chance = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed ^ seed >> 29
    };
    match order {
        "publishes more than there can be" => publish(u64::MAX),
        "publishes a little more than there can be" => publish(2049),
        "has taken what was never sent" => {
            memory[TO_CONTROL + 16].store(1 << 40, Release);
        }
        "sends a message without end" => {
            memory[LINES].store(0xffff_ffff << 32, Relaxed);
            publish(1);
        }
        "sends a torn message" => {
            memory[LINES].store(400 << 32, Relaxed);
            publish(1);
        }
        "sends a kind that there is not" => {
            memory[LINES].store(64 << 32, Relaxed);
            memory[LINES + 1].store(77, Relaxed);
            publish(1);
        }
        "sends keys that are too long" => {
            // A flow whose key is a string of 200 bytes.
            memory[LINES].store(400 << 32, Relaxed);
            memory[LINES + 1].store(0x01_c8_00, Relaxed);
            publish(7);
        }
        "sends nonsense" => {
            memory[LINES..].iter().for_each(|word| word.store(chance(), Relaxed));
            (0..64).for_each(|line| memory[LINES + line * 8].store(64 << 32, Relaxed));
            publish(64);
        }
        "writes everywhere for ever" => {
            // The switch may be asleep until it hears of it: a miss wakes it.
            loop {
                for word in memory.iter() {
                    word.store(chance() >> (chance() % 64), Relaxed);
                }
            }
        }
        _ => panic!("what is {order:?}?"),
    }
}
