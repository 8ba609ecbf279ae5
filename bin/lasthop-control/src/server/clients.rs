//! Who is connected, and who makes room.

use super::pages::Pages;
use super::{MAX_CONNECTIONS, MAX_LONG_LISTS};
use futures_util::{Stream, StreamExt};
use lasthop_api::ApiError;
use lasthop_log::LineLimit;
use lasthop_sys::Beat;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore};
use zlink::Reply;

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) user: u32,
    /// When it last said something.
    pub(super) last: Cell<Instant>,
    /// It has to make room.
    pub(super) sent_away: Notify,
    /// By when it has to have read a long list.
    pub(super) list_until: Cell<Option<tokio::time::Instant>>,
    /// Of the one thread: to listen to a client is a round of work, also where nothing of it comes to the core.
    pub(super) beat: Arc<Beat>,
    /// Of all clients: whose turn it is.
    turn: Rc<Mutex<()>>,
}

impl Client {
    /// Lets whatever else there is to do go first, packets that met no flow above all. A call may take this thread for milliseconds, so
    /// all clients together have one turn between two looks at the rest, however many there are and however much they ask.
    pub(super) async fn take_turn(&self) {
        let _turn = self.turn.lock().await;
        // It comes back when the descriptors of all others have been looked at.
        tokio::task::yield_now().await;
    }
}

/// Held by a client while it is told a long list: one of the few permits for that.
#[derive(Debug)]
pub(super) struct LongListPermit {
    pub(super) client: Rc<Client>,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Drop for LongListPermit {
    fn drop(&mut self) {
        self.client.list_until.set(None);
    }
}

/// A long list in pages, and the permit for it.
pub(super) struct LongList<P> {
    pub(super) pages: Pages<P>,
    pub(super) _permit: Option<LongListPermit>,
}

impl<P> std::fmt::Debug for LongList<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LongList").finish_non_exhaustive()
    }
}

impl<P> Stream for LongList<P> {
    type Item = Result<Reply<P>, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pages.poll_next_unpin(cx)
    }
}

/// Those that are connected. Whoever comes is let in: if there are too many, somebody of the user who has most goes, the one
/// that has said nothing for longest. So nobody can lock others out, and idle clients nobody at all.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    /// By socket, as what follows.
    all: [Rc<RefCell<Vec<Rc<Client>>>>; 2],
    beat: Arc<Beat>,
    turn: Rc<Mutex<()>>,
    /// Lines about those that made room.
    pub(super) evictions: Rc<RefCell<LineLimit>>,
    /// For those who may change things, and for those who may not: these keep nobody else from looking.
    pub(super) long_lists: [Arc<Semaphore>; 2],
}

impl Clients {
    /// `beat`: of this thread.
    pub(crate) fn new(beat: Arc<Beat>) -> Self {
        let long_lists = std::array::from_fn(|_| Arc::new(Semaphore::new(MAX_LONG_LISTS)));
        let evictions = Rc::new(RefCell::new(LineLimit::new(Instant::now())));
        Self { all: Default::default(), beat, turn: Rc::default(), evictions, long_lists }
    }

    fn of(&self, read_only: bool) -> &RefCell<Vec<Rc<Client>>> {
        let [owners, readers] = &self.all;
        if read_only { readers } else { owners }
    }

    pub(super) fn admit(&self, user: u32, read_only: bool) -> Rc<Client> {
        let mut clients = self.of(read_only).borrow_mut();
        if clients.len() >= MAX_CONNECTIONS {
            let of = |user: u32| clients.iter().filter(|c| c.user == user).count();
            let goes = clients.iter().enumerate().max_by_key(|(_, c)| (of(c.user), c.last.get().elapsed()));
            if let Some((at, _)) = goes {
                clients.swap_remove(at).sent_away.notify_one();
            }
        }
        let (last, list_until) = (Cell::new(Instant::now()), Cell::new(None));
        let client = Rc::new(Client {
            user,
            last,
            sent_away: Notify::new(),
            list_until,
            beat: self.beat.clone(),
            turn: self.turn.clone(),
        });
        clients.push(client.clone());
        client
    }

    pub(super) fn forget(&self, client: &Rc<Client>, read_only: bool) {
        self.of(read_only).borrow_mut().retain(|other| !Rc::ptr_eq(other, client));
    }
}
