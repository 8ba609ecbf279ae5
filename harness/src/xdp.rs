//! XDP programs on the far ends of veth pairs: what a network outside does to frames.

use crate::Netns;
use crate::stop::{Outcome, failed};
use lasthop_sys::bpf::assembler::{Assembler, Reg, Width};
use lasthop_sys::bpf::{BpfProgram, ProgramKind};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

/// Attaches a program in the interface's driver, until the descriptor is closed.
pub fn attach(netns: &Netns, interface: &str, code: fn(&mut Assembler)) -> Outcome<OwnedFd> {
    let index = netns.shell(&format!("cat /sys/class/net/{interface}/ifindex"));
    let index = index.trim().parse().map_err(|_| failed(format!("an interface with the number {index:?}")))?;
    let mut a = Assembler::default();
    code(&mut a);
    let code = a.finish().ok_or_else(|| failed("an XDP program that does not assemble: a bug"))?;
    let program = BpfProgram::load(ProgramKind::Xdp, c"lasthop_bench", c"MIT", &code).map_err(failed)?;
    let place = File::open(format!("/run/netns/{}", netns.name())).map_err(failed)?;
    // An interface has its number in its own namespace, which only a thread of its own can enter.
    let attached = std::thread::spawn(move || {
        move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network))?;
        program.attach_to_interface(index, true)
    });
    attached.join().map_err(|_| failed("the thread that attaches an XDP program panicked"))?.map_err(failed)
}

/// `XDP_PASS`.
pub fn pass(a: &mut Assembler) {
    a.set(Reg(0), 2);
    a.exit_with_result();
}

/// `XDP_DROP` of frames whose tag, if any, is not that of IEEE 802.1Q; `XDP_PASS` of the others.
pub fn pass_tagged(a: &mut Assembler) {
    let drop = a.label();
    // `data` and `data_end` of `struct xdp_md`.
    a.load(Width::Word, Reg(2), Reg(1), 0);
    a.load(Width::Word, Reg(3), Reg(1), 4);
    a.copy(Reg(4), Reg(2));
    a.add_value(Reg(4), 14);
    a.jump_above(Reg(4), Reg(3), drop);
    a.load(Width::Half, Reg(3), Reg(2), 12);
    a.jump_ne(Reg(3), i32::from(0x8100_u16.to_be()), drop);
    pass(a);
    a.place(drop);
    a.set(Reg(0), 1);
    a.exit_with_result();
}
