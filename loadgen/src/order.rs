//! Sequence numbers: what is lost, what comes late, what comes twice.

/// What a number tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The one expected.
    Next,
    /// This many before it have not come (yet).
    Gap(u32),
    /// It was missing until now: others overtook it.
    Late,
    /// It had come already.
    Again,
}

/// The numbers received of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order {
    next: u32,
    /// The 64 numbers before `next`, the lowest bit the one just before it: set where it has come.
    come: u64,
}

impl Order {
    /// A number has come.
    #[inline]
    pub fn see(&mut self, number: u32) -> Seen {
        let ahead = number.wrapping_sub(self.next);
        if ahead < 1 << 31 {
            self.come = if ahead < 63 { self.come << (ahead + 1) | 1 } else { 1 };
            self.next = number.wrapping_add(1);
            return if ahead == 0 { Seen::Next } else { Seen::Gap(ahead) };
        }
        let bit = self.next.wrapping_sub(number).wrapping_sub(1);
        // What is further back than we remember has hardly come twice.
        if bit < 64 && self.come >> bit & 1 == 1 {
            return Seen::Again;
        }
        if bit < 64 {
            self.come |= 1 << bit;
        }
        Seen::Late
    }
}

#[cfg(test)]
mod tests {
    use super::Seen::*;
    use super::*;

    fn all(numbers: &[u32]) -> Vec<Seen> {
        let mut order = Order::default();
        numbers.iter().map(|n| order.see(*n)).collect()
    }

    #[test]
    fn order_loss_overtaking_and_doubles_are_told_apart() {
        assert_eq!(all(&[0, 1, 2]), [Next; 3]);
        assert_eq!(all(&[0, 2, 1, 3]), [Next, Gap(1), Late, Next]);
        assert_eq!(all(&[0, 0, 1]), [Next, Again, Next]);
        assert_eq!(all(&[0, 5, 3, 3, 6]), [Next, Gap(4), Late, Again, Next]);
        assert_eq!(all(&[3]), [Gap(3)]);
        assert_eq!(all(&[0, 100, 99, 99, 101]), [Next, Gap(99), Late, Again, Next]);
        assert_eq!(all(&[0, 63, 62, 1, 0]), [Next, Gap(62), Late, Late, Again]);
    }

    #[test]
    fn numbers_wrap() {
        let mut order = Order { next: u32::MAX, come: u64::MAX };
        assert_eq!(order.see(u32::MAX), Next);
        assert_eq!(order.see(0), Next);
        assert_eq!(order.see(u32::MAX), Again);
        assert_eq!(order.see(2), Gap(1));
        assert_eq!(order.see(1), Late);
    }
}
