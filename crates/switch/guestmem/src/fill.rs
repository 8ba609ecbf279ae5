//! A list that is filled by a loop whose counters stay in registers.

use arrayvec::ArrayVec;

/// Appends up to `most` items, as many as there is room for and as long as there is an `nth`, which is asked for numbers below `most`;
/// returns how many. As
/// [`ArrayVec::extend`](Extend::extend), which costs some 15 instructions more for each: it does not let the compiler know that its own
/// length is not what `next` reads.
#[inline(always)]
pub(crate) fn fill<T: Copy, const N: usize>(
    list: &mut ArrayVec<T, N>,
    most: usize,
    mut nth: impl FnMut(usize) -> Option<T>,
) -> usize {
    let before = list.len();
    let most = most.min(N - before);
    // SAFETY: `before` is at most the capacity.
    let first = unsafe { list.as_mut_ptr().add(before) };
    let mut filled = 0;
    while filled < most
        && let Some(item) = nth(filled)
    {
        // SAFETY: `before + filled` is less than the capacity; nobody else has the list while it is borrowed.
        unsafe { first.add(filled).write(item) };
        filled += 1;
    }
    // SAFETY: so many have been written, within the capacity; a `Copy` item has nothing to drop.
    unsafe { list.set_len(before + filled) };
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_filled_as_far_as_all_three_allow() {
        for (before, most, has) in (0..5).flat_map(|a| (0..6).flat_map(move |b| (0..6).map(move |c| (a, b, c)))) {
            let mut list: ArrayVec<usize, 4> = (0..before.min(4)).collect();
            let filled = fill(&mut list, most, |n| (n < has).then_some(before.min(4) + n));
            assert_eq!(filled, most.min(has).min(4 - before.min(4)), "{before} there, {most} wanted of {has}");
            assert!(list.iter().copied().eq(0..before.min(4) + filled));
        }
    }
}
