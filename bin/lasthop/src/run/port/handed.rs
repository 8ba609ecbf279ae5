//! A port that goes on under another program of this process.

use super::super::backoff::Backoff;
use super::super::handover::{Fd, Giver, Moment, Taker};
use super::super::owner::{FileOwner, Ids};
use super::super::presence::Presence;
use super::super::socket::{Listener, ListenerState};
use super::{End, Live, Port};
use lasthop_log::LineLimit;
use lasthop_management_ipc::PortConfig;
use lasthop_policy::Batch;
use lasthop_sys::{Aside, Epoll, Trigger};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What there is to know of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct PortState {
    /// As children know it.
    pub config: PortConfig,
    tx_batch: Option<Batch>,
    owner: Option<FileOwner>,
    ids: Option<Ids>,
    saved: bool,
    given: bool,
    live: Option<(Moment, Option<Fd>)>,
    end: EndState,
    complaint: Option<String>,
    told: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum EndState {
    Listen { listener: Option<ListenerState>, again_at: Option<Moment>, waiting: Option<(Fd, Moment)> },
    Connect { again_at: Moment, backoff: Backoff },
}

impl Port {
    /// Connections of it do not close, and a program that is executed anew would wait for that.
    pub fn is_stuck(&self) -> bool {
        self.aside.is_stuck()
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> PortState {
        let live = self.live.as_ref().map(|Live { since, copy }| {
            let copy = copy.as_ref().map(|copy| giver.fd(copy));
            (giver.moment(*since), copy)
        });
        let end = match &self.end {
            End::Listen { listener, again_at, waiting } => EndState::Listen {
                listener: listener.as_ref().map(|listener| listener.hand_over(giver)),
                again_at: again_at.map(|at| giver.moment(at)),
                waiting: waiting.as_ref().map(|(connection, until)| (giver.fd(connection), giver.moment(*until))),
            },
            End::Connect { again_at, backoff } => {
                EndState::Connect { again_at: giver.moment(*again_at), backoff: backoff.clone() }
            }
        };
        PortState {
            config: self.config.clone(),
            tx_batch: self.tx_batch,
            owner: self.owner.clone(),
            ids: self.ids,
            saved: self.saved,
            given: self.given,
            live,
            end,
            complaint: self.complaint.clone(),
            told: self.told.clone(),
        }
    }

    /// Goes on with it.
    pub fn resumed(
        state: PortState,
        (epoll, presence, token): (&Epoll, &Presence, u64),
        taker: &Taker,
    ) -> Result<Self, String> {
        let end = match state.end {
            EndState::Listen { listener, again_at, waiting } => {
                let listener = listener.map(|listener| Listener::resumed(listener, taker)).transpose()?;
                let again_at = again_at.map(|at| taker.at(at));
                if let Some(listener) = &listener {
                    // Otherwise it rests.
                    if again_at.is_none() {
                        let watched = epoll.add(listener, token, Trigger::Level);
                        watched.map_err(|e| format!("port {}: epoll: {e}", state.config.name))?;
                    }
                    presence.watch(listener);
                }
                let waiting =
                    waiting.map(|(connection, until)| Ok::<_, String>((taker.fd(connection)?, taker.at(until))));
                End::Listen { listener, again_at, waiting: waiting.transpose()? }
            }
            EndState::Connect { again_at, backoff } => End::Connect { again_at: taker.at(again_at), backoff },
        };
        let live = state.live.map(|(since, copy)| {
            let copy = copy.map(|copy| taker.fd(copy)).transpose()?;
            Ok::<_, String>(Live { since: taker.at(since), copy })
        });
        Ok(Self {
            aside: Aside::new(&state.config.name),
            config: state.config,
            tx_batch: state.tx_batch,
            owner: state.owner,
            ids: state.ids,
            refused: None,
            saved: state.saved,
            given: state.given,
            live: live.transpose()?,
            end,
            complaint: state.complaint,
            told: state.told,
            log: LineLimit::new(Instant::now()),
        })
    }
}
