//! Long lists in pages.

use lasthop_api::ApiError;
use zlink::Reply;

/// Objects in the only reply to a client that does not take several.
const WITHOUT_MORE: usize = 256;

pub(super) type Pages<P> = futures_util::stream::Iter<std::vec::IntoIter<Result<Reply<P>, ApiError>>>;

/// The list cut into pages, at least one; or its beginning for a client that takes one reply only.
pub(super) fn pages<T, P>(
    list: Result<Vec<T>, ApiError>,
    more: bool,
    size: usize,
    page: impl Fn(Vec<T>, u64) -> P,
) -> Pages<P> {
    let replies = match list {
        Err(e) => vec![Err(e)],
        Ok(list) => {
            let (total, size) = (list.len(), if more { size } else { WITHOUT_MORE });
            let count = if more { total.div_ceil(size).max(1) } else { 1 };
            let mut items = list.into_iter();
            let replies = (1..=count).map(|n| {
                let items = items.by_ref().take(size).collect();
                Ok(Reply::new(Some(page(items, total as u64))).set_continues(Some(n < count)))
            });
            replies.collect()
        }
    };
    futures_util::stream::iter(replies)
}
