//! Reservation of the shared memory: half of it is divided into equal reserved parts, one for each endpoint. The other
//! half is first come, first served.

/// The reserved parts, in bytes.
#[derive(Debug)]
pub(super) struct Reserve {
    /// Size of an endpoint's part.
    each: usize,
    /// Unused bytes of all parts together.
    left: usize,
}

impl Reserve {
    /// Divides half of `all` bytes among `endpoints` endpoints.
    pub fn new(all: usize, endpoints: usize) -> Self {
        let each = (all / 2).checked_div(endpoints).unwrap_or(0);
        Reserve { each, left: each * endpoints }
    }

    /// Whether an endpoint that holds `held` bytes may take `more`, if `free` bytes are free.
    #[inline]
    pub fn allows(&self, held: usize, more: usize, free: usize) -> bool {
        if held + more <= self.each {
            return true;
        }
        let others = self.left - self.each.saturating_sub(held).min(self.left);
        free.checked_sub(more).is_some_and(|rest| rest >= others)
    }

    /// Whether the parts stay available if an allocation outside of them takes `bytes`, which rounding at most doubles.
    #[inline]
    pub fn leaves(&self, free: usize, bytes: usize) -> bool {
        free > self.left.saturating_add(2 * bytes)
    }

    /// Records that an endpoint that holds `held` bytes takes `more`.
    #[inline]
    pub fn take(&mut self, held: usize, more: usize) {
        self.left -= self.part(held + more) - self.part(held);
    }

    /// Records that an endpoint that holds `held` bytes releases `less` of them.
    #[inline]
    pub fn give(&mut self, held: usize, less: usize) {
        self.left += self.part(held) - self.part(held.saturating_sub(less));
    }

    /// Bytes of an endpoint's memory that count for its part.
    #[inline]
    fn part(&self, held: usize) -> usize {
        held.min(self.each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_gets_its_reserved_part_in_any_order() {
        let mut reserve = Reserve::new(1000, 5);
        let (mut held, mut free) = ([0; 5], 1000);
        let mut take = |reserve: &mut Reserve, n: usize, more: usize| {
            let allowed = reserve.allows(held[n], more, free);
            if allowed {
                reserve.take(held[n], more);
                held[n] += more;
                free -= more;
            }
            allowed
        };
        // The first endpoint gets all memory except the parts of the others.
        assert!(
            take(&mut reserve, 0, 599) && !take(&mut reserve, 0, 2) && take(&mut reserve, 0, 1)
        );
        assert!((1..4).all(|n| take(&mut reserve, n, 100) && !take(&mut reserve, n, 1)));
        assert!(
            take(&mut reserve, 4, 30) && take(&mut reserve, 4, 70) && !take(&mut reserve, 4, 1)
        );
        assert_eq!((free, reserve.left), (0, 0));
        // Released memory beyond a part is available to all endpoints, memory of a part only to its owner.
        reserve.give(600, 550);
        assert_eq!(reserve.left, 50);
        assert!(reserve.allows(100, 500, 550) && !reserve.allows(100, 501, 550));
        assert!(reserve.allows(50, 550, 550));
        let empty = Reserve::new(10, 0);
        assert!(empty.allows(0, 10, 10) && !empty.allows(0, 11, 10));
    }
}
