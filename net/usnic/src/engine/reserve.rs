//! What each endpoint can have of the memory that all share, whatever the others take. Half of it is set aside for that,
//! in equal parts; the other half goes to who comes first.

/// The parts, in bytes.
#[derive(Debug)]
pub(super) struct Reserve {
    /// An endpoint's part.
    each: usize,
    /// What is left of all parts together.
    left: usize,
}

impl Reserve {
    /// Of so many, for so many endpoints.
    pub fn new(all: usize, endpoints: usize) -> Self {
        let each = (all / 2).checked_div(endpoints).unwrap_or(0);
        Reserve { each, left: each * endpoints }
    }

    /// Whether an endpoint that has `held` may have `more`, of which `free` are there.
    #[inline]
    pub fn allows(&self, held: usize, more: usize, free: usize) -> bool {
        if held + more <= self.each {
            return true;
        }
        let others = self.left - self.each.saturating_sub(held).min(self.left);
        free.checked_sub(more).is_some_and(|rest| rest >= others)
    }

    /// Whether the parts are still there if somebody without one takes `bytes` of the memory, twice that at most with
    /// what is lost by rounding.
    #[inline]
    pub fn leaves(&self, free: usize, bytes: usize) -> bool {
        free > self.left.saturating_add(2 * bytes)
    }

    /// An endpoint that has `held` takes `more`.
    #[inline]
    pub fn take(&mut self, held: usize, more: usize) {
        self.left -= self.part(held + more) - self.part(held);
    }

    /// An endpoint that has `held` gives `less` of it back.
    #[inline]
    pub fn give(&mut self, held: usize, less: usize) {
        self.left += self.part(held) - self.part(held.saturating_sub(less));
    }

    /// How much of what an endpoint has is of its part.
    #[inline]
    fn part(&self, held: usize) -> usize {
        held.min(self.each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_its_part_whoever_comes_first() {
        let mut reserve = Reserve::new(1000, 5);
        let (mut held, mut free) = ([0; 5], 1000);
        let mut take = |reserve: &mut Reserve, who: usize, more: usize| {
            let allowed = reserve.allows(held[who], more, free);
            if allowed {
                reserve.take(held[who], more);
                held[who] += more;
                free -= more;
            }
            allowed
        };
        // All but the parts of the others.
        assert!(
            take(&mut reserve, 0, 599) && !take(&mut reserve, 0, 2) && take(&mut reserve, 0, 1)
        );
        assert!((1..4).all(|who| take(&mut reserve, who, 100) && !take(&mut reserve, who, 1)));
        assert!(
            take(&mut reserve, 4, 30) && take(&mut reserve, 4, 70) && !take(&mut reserve, 4, 1)
        );
        assert_eq!((free, reserve.left), (0, 0));
        // What is given back beyond a part is anybody's, what is of a part its owner's.
        reserve.give(600, 550);
        assert_eq!(reserve.left, 50);
        assert!(reserve.allows(100, 500, 550) && !reserve.allows(100, 501, 550));
        assert!(reserve.allows(50, 550, 550));
        let nobody = Reserve::new(10, 0);
        assert!(nobody.allows(0, 10, 10) && !nobody.allows(0, 11, 10));
    }
}
