//! Long lists in pages.

use crate::lines::Lines;
use lasthop_api::ApiError;
use zlink::Reply;

/// Objects in the only reply to a client that does not take several.
const WITHOUT_MORE: usize = 256;

pub(super) type Pages<P> = futures_util::stream::Iter<Box<dyn Iterator<Item = Result<Reply<P>, ApiError>>>>;

/// The list cut into pages, at least one; or its beginning for a client that takes one reply only. A page is made when it is asked for.
pub(super) fn pages<T: 'static, P: 'static>(
    list: Result<impl Into<Lines<T>>, ApiError>,
    more: bool,
    size: usize,
    page: impl Fn(Vec<T>, u64) -> P + 'static,
) -> Pages<P> {
    let replies: Box<dyn Iterator<Item = _>> = match list {
        Err(e) => Box::new(std::iter::once(Err(e))),
        Ok(list) => {
            let mut lines = list.into();
            let (total, size) = (lines.total(), if more { size } else { WITHOUT_MORE });
            let count = if more { total.div_ceil(size).max(1) } else { 1 };
            Box::new((1..=count).map(move |n| {
                let items = lines.by_ref().take(size).collect();
                Ok(Reply::new(Some(page(items, total as u64))).set_continues(Some(n < count)))
            }))
        }
    };
    futures_util::stream::iter(replies)
}
