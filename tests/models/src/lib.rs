//! Models of what threads and processes do to each other's memory, under `loom`: each is a small program over the production
//! source itself, run in every order that a weakly ordered processor and an unlucky scheduler may choose, with up to some
//! preemptions. docs/concurrency.md says what each covers, what it does not, and how it was seen to fail.
// The source's own tests are not for loom.
#![cfg(not(test))]

use loom::model::Builder;

pub mod control_rings;
pub mod copies;
pub mod locks;
pub mod mailboxes;
pub mod owners;
pub mod revocations;
pub mod rings;
mod sync;

#[path = "../../../crates/switch/schedule/src/boosted.rs"]
mod boosted;
// Models send one message at a time, and none is too long.
#[path = "../../../crates/switch/schedule/src/owner.rs"]
mod owner;
#[allow(dead_code)]
#[path = "../../../crates/shared/ipc/src/ring.rs"]
mod ring;
// No model tries a lock without waiting.
#[path = "../../../crates/front-end/vhostuser/src/iotlb/idle.rs"]
mod idle;
#[allow(dead_code)]
#[path = "../../../crates/shared/lock/src/lock.rs"]
mod lock;
#[path = "../../../crates/switch/schedule/src/mailbox.rs"]
mod mailbox;

/// Runs a model in all orders with up to `preemptions`.
pub fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let model = std::sync::Arc::new(model);
    builder.check(move || {
        // loom's first thread has little stack.
        let model = model.clone();
        spawn(move || model()).join().expect("it ends");
    });
}

/// Starts a thread of a model. Bursts take more stack than loom gives.
pub fn spawn(body: impl FnOnce() + Send + 'static) -> loom::thread::JoinHandle<()> {
    loom::thread::Builder::new().stack_size(1 << 16).spawn(body).expect("loom has room for it")
}

/// Whether a model finds that something must not be. A failure of loom itself (too little stack, too many steps) is none.
pub fn finds_fault(model: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    let Err(said) = std::panic::catch_unwind(model) else { return false };
    let text = said.downcast_ref::<String>().cloned();
    let text = text.or_else(|| said.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
    println!("found: {}", text.lines().next().unwrap_or("?"));
    ["deadlock", "assertion", "keeps the rules"].iter().any(|fault| text.contains(fault))
}
