//! The processor's counter of time, for measurements (feature `cycles`).

/// Where the counter stands, once everything before has been done. On x86-64 the time stamp counter: cycles of the nominal frequency,
/// whatever the core's is; on aarch64 the generic timer, which counts more slowly.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: neither touches memory, and every x86-64 processor has both; the kernel forbids rdtsc to those only who ask for that
    // (PR_SET_TSC).
    unsafe {
        std::arch::x86_64::_mm_lfence();
        let cycles = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        cycles
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register that Linux lets every process read.
        unsafe { std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_go_back() {
        let stands = [cycles(), cycles(), cycles()];
        assert!(stands.is_sorted() && stands[0] != 0, "{stands:?}");
    }
}
