//! What the C library's heap and the stack keep of memory that is used no more, for processes of which there are many or that have many threads.

use std::ffi::c_void;

/// Pages of the stack that may have been in use below the present frame.
const PAGES: usize = 32;

/// All threads share one heap, as in the sandbox: they allocate little, and each heap of its own keeps pages.
pub fn share_one_heap() {
    crate::sched::one_heap();
}

/// Gives the kernel back all pages in which nothing is in use: what it took to start is not needed again. By the first thread, whose stack
/// grows as it is used.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but what is free, under the allocator's own lock.
    unsafe {
        libc::malloc_trim(0);
    }
    let (here, page) = (0_u8, rustix::param::page_size());
    // All frames are above this page, but for those of the call below, for which the next page is left.
    let end = (&raw const here).addr() & !(page - 1);
    let begin = std::ptr::with_exposed_provenance_mut::<c_void>(end.saturating_sub((PAGES + 1) * page));
    // SAFETY: what lies below the stack pointer belongs to nobody: a function that is called writes there before it reads. The kernel leaves
    // out what is not mapped, and puts zeros in the place of the rest.
    unsafe {
        libc::madvise(begin, PAGES * page, libc::MADV_DONTNEED);
    }
}
