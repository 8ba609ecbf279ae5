//! Session processes that go on under another program of this process.

use super::super::child::ChildState;
use super::super::handover::{Fd, Giver, Taker};
use super::Sessions;
use lasthop_session_ipc::Bounds;
use lasthop_sys::Epoll;
use lasthop_types::PortId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What there is to know of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct SessionsState {
    program: PathBuf,
    all: Vec<SessionState>,
    bounds: Vec<(u32, Bounds)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SessionState {
    port: u32,
    name: String,
    child: ChildState,
    copy: Option<Fd>,
    vm: Option<u32>,
    outlived: bool,
    #[serde(default)]
    before: Option<Fd>,
}

impl Sessions {
    /// What of them is half done, so that no other program can go on with them.
    pub fn unsettled(&self) -> Option<String> {
        self.all.values().find_map(|session| {
            let stuck =
                session.aside.is_stuck().then(|| format!("a connection of port {} does not close", session.name));
            stuck.or_else(|| session.child.unsettled())
        })
    }

    /// Of those that are settled.
    pub fn hand_over(&self, giver: &mut Giver) -> SessionsState {
        let of = |(port, session): (&u32, &super::Session)| SessionState {
            port: *port,
            name: session.name.clone(),
            child: session.child.hand_over(giver),
            copy: session.copy.as_ref().map(|copy| giver.fd(copy)),
            vm: session.vm,
            outlived: session.outlived,
            before: session.before.as_ref().map(|before| giver.fd(before)),
        };
        let all = self.all.iter().map(of).collect();
        let bounds = self.bounds.iter().map(|(port, bounds)| (*port, *bounds)).collect();
        SessionsState { program: self.program.clone(), all, bounds }
    }

    /// Goes on with them.
    pub fn resume(&mut self, state: SessionsState, epoll: &Epoll, taker: &Taker) -> Result<(), String> {
        self.program = state.program;
        self.bounds = state.bounds.into_iter().collect();
        for SessionState { port, name, child, copy, vm, outlived, before } in state.all {
            self.add(PortId(port), &name);
            let Some(session) = self.all.get_mut(&port) else { continue };
            session.child.resume(child, epoll, taker)?;
            session.copy = copy.map(|copy| taker.fd(copy)).transpose()?;
            session.before = before.map(|before| taker.fd(before)).transpose()?;
            (session.vm, session.outlived) = (vm, outlived);
        }
        Ok(())
    }
}
